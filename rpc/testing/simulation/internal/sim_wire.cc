// A write takes bytes from the window and becomes one or two segments, which arrive in order after a random
// latency (send, arm, arrive, deliver). A read frees the window; the writer learns of this after another
// latency (arm_credit). A cut does not remove segments: while a direction is blocked, arm() waits for
// resume(), and watch() breaks the writer's end if nothing progresses for SimWeather::give_up, as the
// kernel's retransmission timeout does. A reset may destroy segments in flight and breaks the end at which it
// arrives.
#include <weft/rpc/testing/simulation/internal/sim_wire.h>

#include <weft/rpc/testing/simulation/sim_world.h>

#include <asio/error.hpp>

#include <algorithm>
#include <cstring>

namespace weft::test {

using rpc::Clock;

namespace {

constexpr std::size_t max_spans = 64;

template <class Span>
std::size_t total(std::span<const Span> spans) {
  std::size_t bytes = 0;
  for (const Span& span : spans.first(std::min(spans.size(), max_spans))) bytes += span.size();
  return bytes;
}

}  // namespace

SimWire::SimWire(SimNetwork& network, std::uint64_t number, std::shared_ptr<SimLoop> one,
                 std::shared_ptr<SimLoop> other)
    : network_(&network),
      number_(number),
      names_{one->process()->name(), other->process()->name()},
      window_(static_cast<std::size_t>(
          network.random_.spread(network.weather_.least_window, network.weather_.max_window))),
      bulk_(network.random_.chance(network.weather_.bulk) ? std::optional(network.weather_.bulk_range)
                                                          : std::nullopt),
      latency_{network.latency(), network.latency()} {
  ends_[0].process = one->process();
  ends_[1].process = other->process();
  ends_[0].loop = std::move(one);
  ends_[1].loop = std::move(other);
}

std::string SimWire::describe(Side side) const {
  return "sim " + names_[side] + (side == 0 ? " -> " : " <- ") + names_[other(side)] + " #" +
         std::to_string(number_);
}

// --- Use ---

void SimWire::check_use(Side side, const char* what) const {
  const End& end = ends_[side];
  if (!end.open && !end.gone && end.process->alive())
    world().violation(describe(side) + ": " + what + " after close()");
  if (world().running() != nullptr && !end.loop->running_here())
    world().violation(describe(side) + ": " + what + " off its loop");
}

std::size_t SimWire::share(std::size_t max) const {
  return random().chance(weather().short_io) ? static_cast<std::size_t>(random().spread(1, max)) : max;
}

std::size_t SimWire::read(Side side, std::span<const std::span<std::byte>> into, std::error_code& error) {
  error = {};
  if (network_ == nullptr) return error = asio::error::operation_aborted, 0;
  check_use(side, "read()");
  Pipe& pipe = pipes_[other(side)];
  const std::size_t room = total(into);
  if (room == 0) world().violation(describe(side) + ": read() into nothing");
  if (pipe.unread == 0 || room == 0 || !ends_[side].open) {
    error = ends_[side].broken  ? ends_[side].broken
            : !ends_[side].open ? std::error_code(asio::error::operation_aborted)
            : pipe.end_arrived  ? std::error_code(asio::error::eof)
                                : std::error_code(asio::error::would_block);
    return 0;
  }
  const std::size_t bytes = share(std::min(pipe.unread, room));
  std::size_t left = bytes;
  for (std::span<std::byte> span : into.first(std::min(into.size(), max_spans))) {
    while (left != 0 && !span.empty()) {
      const std::vector<std::byte>& front = pipe.arrived.front();
      const std::size_t n = std::min({left, span.size(), front.size() - pipe.front_read});
      std::memcpy(span.data(), front.data() + pipe.front_read, n);
      span = span.subspan(n);
      left -= n;
      pipe.front_read += n;
      if (pipe.front_read == front.size()) {
        pipe.arrived.pop_front();
        pipe.front_read = 0;
      }
    }
  }
  pipe.unread -= bytes;
  pipe.credit += bytes;
  arm_credit(other(side));
  return bytes;
}

std::size_t SimWire::write(Side side, std::span<const std::span<const std::byte>> from,
                           std::error_code& error) {
  error = {};
  if (network_ == nullptr) return error = asio::error::operation_aborted, 0;
  check_use(side, "write()");
  Pipe& pipe = pipes_[side];
  const std::size_t wanted = total(from);
  if (wanted == 0) world().violation(describe(side) + ": write() of nothing");
  if (ends_[side].broken) {
    error = ends_[side].broken;
  } else if (!ends_[side].open || pipe.end_sent) {
    error = asio::error::broken_pipe;
  } else if (pipe.taken == window_ || wanted == 0) {
    error = asio::error::would_block;
  }
  if (error) return 0;
  const std::size_t bytes = share(std::min(wanted, window_ - pipe.taken));
  std::vector<std::byte> copy(bytes);
  std::size_t filled = 0;
  for (const std::span<const std::byte> span : from.first(std::min(from.size(), max_spans))) {
    const std::size_t n = std::min(span.size(), bytes - filled);
    if (n != 0) std::memcpy(copy.data() + filled, span.data(), n);
    filled += n;
  }
  pipe.taken += bytes;
  // The bytes of one write may arrive in two segments.
  if (const std::size_t first = share(bytes); first != bytes) {
    const auto middle = copy.begin() + static_cast<std::ptrdiff_t>(first);
    std::vector<std::byte> rest(middle, copy.end());
    copy.erase(middle, copy.end());
    send(side, Segment::Kind::data, std::move(copy));
    copy = std::move(rest);
  }
  send(side, Segment::Kind::data, std::move(copy));
  return bytes;
}

bool SimWire::ready(Side side, Event event) const {
  if (ends_[side].broken) return event != Event::acknowledged;
  if (event == Event::writable) return pipes_[side].taken != window_ || pipes_[side].end_sent;
  if (event == Event::acknowledged) return false;  // the caller has checked already
  return pipes_[other(side)].unread != 0 || pipes_[other(side)].end_arrived;
}

void SimWire::when(Side side, Event event, rpc::Callback job) {
  static constexpr const char* names[] = {"when_readable()", "when_writable()", "when_acknowledged()"};
  const auto which = static_cast<std::size_t>(event);
  if (network_ == nullptr) return;
  check_use(side, names[which]);
  End& end = ends_[side];
  if (!end.open) return;
  if (end.jobs[which]) world().violation(describe(side) + ": " + names[which] + " twice");
  const rpc::Callback before = std::exchange(end.jobs[which], std::move(job));
  if (ready(side, event)) return notify(side, event);
  if (!random().chance(weather().false_calls)) return;
  world().after(random().up_to(weather().max_latency), [weak = weak_from_this(), side, event] {
    if (const auto wire = weak.lock()) wire->notify(side, event);
  });
}

// The job stays here until its turn on the loop, so that close() can drop it until then.
void SimWire::notify(Side side, Event event) {
  End& end = ends_[side];
  const auto which = static_cast<std::size_t>(event);
  if (!end.jobs[which] || std::exchange(end.posted[which], true)) return;
  end.loop->post([weak = weak_from_this(), side, which] {
    const auto wire = weak.lock();
    if (wire == nullptr) return;
    End& here = wire->ends_[side];
    here.posted[which] = false;
    if (rpc::Callback job = std::exchange(here.jobs[which], nullptr)) job();
  });
}

// --- Bulk: the other side's memory, which is in this process ---

void SimWire::pull(Side side, std::uint64_t address, std::span<std::byte> into, std::error_code& error) {
  error = {};
  if (network_ == nullptr) return static_cast<void>(error = asio::error::operation_aborted);
  check_use(side, "pull()");
  const End& from = ends_[other(side)];
  if (!from.open || from.broken || !ends_[side].open || ends_[side].broken) {
    for (std::byte& byte : into) byte = std::byte{0xb1};  // the result is unspecified
    error = asio::error::connection_reset;
    return;
  }
  world().trace().add(world().now(), "pulls", names_[side], number_, into.size());
  std::memcpy(into.data(), reinterpret_cast<const void*>(static_cast<std::uintptr_t>(address)), into.size());
}

void SimWire::acknowledge(Side side) {
  if (network_ == nullptr) return;
  check_use(side, "acknowledge()");
  ++pipes_[other(side)].pulled;
  arm_credit(other(side));
}

void SimWire::shut_down_writing(Side side, std::error_code& error) {
  error = {};
  if (network_ == nullptr) return;
  check_use(side, "shut_down_writing()");
  if (ends_[side].broken) {
    error = asio::error::not_connected;
  } else if (!std::exchange(pipes_[side].end_sent, true)) {
    send(side, Segment::Kind::end);
  }
}

void SimWire::close(Side side) {
  End& end = ends_[side];
  const auto jobs = std::exchange(end.jobs, {});  // destroyed last: what they own may call this object
  if (!std::exchange(end.open, false) || network_ == nullptr) return;
  Pipe& in = pipes_[other(side)];
  const bool unread = in.unread != 0;
  in.arrived.clear();
  in.unread = 0;
  if (end.broken) return;
  world().trace().add(world().now(), "close", names_[side], number_, unread ? 1 : 0);
  if (unread) return send_reset(side);
  if (!std::exchange(pipes_[side].end_sent, true)) send(side, Segment::Kind::end);
}

// --- In flight ---

void SimWire::send(Side from, Segment::Kind kind, std::vector<std::byte> bytes) {
  Pipe& pipe = pipes_[from];
  if (pipe.lost) return watch(from);
  std::chrono::nanoseconds wait = latency_[from] + random().up_to(latency_[from]);
  if (random().chance(weather().repeats)) wait += random().up_to(weather().repeat_after);
  pipe.last_arrival = std::max(pipe.last_arrival, rpc::later(world().now(), wait));
  pipe.in_flight.push_back({pipe.last_arrival, kind, std::move(bytes)});
  arm(from);
}

void SimWire::arm(Side from) {
  Pipe& pipe = pipes_[from];
  if (pipe.armed || pipe.in_flight.empty()) return;
  if (blocked(from)) return watch(from);
  pipe.armed = true;
  world().at(pipe.in_flight.front().arrives, [weak = weak_from_this(), from] {
    const auto wire = weak.lock();
    if (wire == nullptr || wire->network_ == nullptr) return;
    wire->pipes_[from].armed = false;
    wire->arrive(from);
  });
}

void SimWire::arrive(Side from) {
  Pipe& pipe = pipes_[from];
  if (pipe.in_flight.empty()) return;
  if (blocked(from)) return watch(from);
  // The first segment may differ from the awaited one, which may have been lost in a reset.
  if (pipe.in_flight.front().arrives <= world().now()) {
    Segment segment = std::move(pipe.in_flight.front());
    pipe.in_flight.pop_front();
    if (segment.kind == Segment::Kind::data && weather().resets != 0 && !ends_[from].reset_sent &&
        random().below(1'000'000) < weather().resets) {
      pipe.in_flight.clear();  // otherwise the segments behind this one would be delivered in its place
      reset();
    } else {
      deliver(other(from), std::move(segment));
    }
  }
  arm(from);
}

void SimWire::deliver(Side to, Segment segment) {
  End& end = ends_[to];
  Pipe& pipe = pipes_[other(to)];
  if (end.gone && world().find(names_[to]) == nullptr) {
    pipe.lost = true;
    return watch(other(to));
  }
  world().trace().add(world().now(),
                      segment.kind == Segment::Kind::data  ? "arrives at"
                      : segment.kind == Segment::Kind::end ? "end arrives at"
                                                           : "reset arrives at",
                      names_[to], number_, segment.bytes.size());
  if (segment.kind == Segment::Kind::reset) return break_end(to, asio::error::connection_reset);
  if (!end.open || end.broken) {
    if (segment.kind == Segment::Kind::data || end.gone) send_reset(to);
    return;
  }
  if (segment.kind == Segment::Kind::end) {
    pipe.end_arrived = true;
  } else {
    pipe.unread += segment.bytes.size();
    pipe.arrived.push_back(std::move(segment.bytes));
  }
  notify(to, Event::readable);
}

void SimWire::arm_credit(Side writer) {
  Pipe& pipe = pipes_[writer];
  const Side reader = other(writer);
  if (pipe.credit_armed || (pipe.credit == 0 && pipe.pulled == 0)) return;
  if (pipes_[reader].lost || blocked(reader)) return watch(writer);
  pipe.credit_armed = true;
  world().after(latency_[reader], [weak = weak_from_this(), writer, reader] {
    const auto wire = weak.lock();
    if (wire == nullptr || wire->network_ == nullptr) return;
    Pipe& here = wire->pipes_[writer];
    here.credit_armed = false;
    if (wire->pipes_[reader].lost || wire->blocked(reader)) return wire->watch(writer);
    here.taken -= std::exchange(here.credit, 0);
    ++here.progress;
    wire->notify(writer, Event::writable);
    if (here.pulled == 0) return;
    here.acknowledged += std::exchange(here.pulled, 0);
    wire->notify(writer, Event::acknowledged);
  });
}

// --- Ends ---

void SimWire::send_reset(Side from) {
  if (std::exchange(ends_[from].reset_sent, true)) return;
  Pipe& pipe = pipes_[from];
  // It does not overtake segments, but some segments before it are lost.
  if (!pipe.in_flight.empty())
    pipe.in_flight.resize(static_cast<std::size_t>(random().between(0, pipe.in_flight.size())));
  send(from, Segment::Kind::reset);
}

void SimWire::break_end(Side side, std::error_code error) {
  End& end = ends_[side];
  if (!end.open || end.broken) return;
  world().trace().add(world().now(), "broken", names_[side], number_,
                      static_cast<std::uint64_t>(error.value()));
  end.broken = error;
  Pipe& in = pipes_[other(side)];
  if (random().coin()) {  // some systems still allow reading what has arrived
    in.arrived.clear();
    in.unread = in.front_read = 0;
  }
  notify(side, Event::readable);
  notify(side, Event::writable);
}

void SimWire::watch(Side writer) {
  Pipe& pipe = pipes_[writer];
  if (pipe.watched || pipe.taken == 0 || !open(writer)) return;
  pipe.watched = true;
  world().after(weather().give_up, [weak = weak_from_this(), writer, progress = pipe.progress] {
    const auto wire = weak.lock();
    if (wire == nullptr || wire->network_ == nullptr) return;
    Pipe& here = wire->pipes_[writer];
    here.watched = false;
    const bool stuck = here.lost || wire->blocked(writer) || wire->pipes_[other(writer)].lost ||
                       wire->blocked(other(writer)) || wire->ends_[other(writer)].gone;
    if (!stuck) return;
    if (here.progress != progress) return wire->watch(writer);
    here.in_flight.clear();  // no more retransmissions
    wire->break_end(writer, asio::error::timed_out);
  });
}

void SimWire::crash(Side side, SimCrash how) {
  End& end = ends_[side];
  if (!end.open) return;
  // Its jobs are kept: a crashed process destroys nothing, and runs nothing.
  auto jobs = std::exchange(end.jobs, {});
  if (how == SimCrash::process || one_host()) {
    close(side);
  } else {
    end.open = false;
    end.gone = true;
    Pipe& pipe = pipes_[side];
    if (!pipe.in_flight.empty())
      pipe.in_flight.resize(static_cast<std::size_t>(random().between(0, pipe.in_flight.size())));
    watch(other(side));  // a writer that waits for room probes the peer, and gets no reply either
  }
  end.jobs = std::move(jobs);
}

void SimWire::reset() {
  world().trace().add(world().now(), "reset", names_[0], number_);
  send_reset(0);
  send_reset(1);
}

void SimWire::blackhole() {
  if (one_host()) return;
  world().trace().add(world().now(), "blackhole", names_[0], number_);
  for (const Side side : {0U, 1U}) {
    pipes_[side].lost = true;
    pipes_[side].in_flight.clear();
    watch(side);
  }
}

void SimWire::resume() {
  for (const Side side : {0U, 1U}) {
    arm(side);
    arm_credit(side);
  }
}

void SimWire::detach() {
  for (End& end : ends_) end.open = false;
  network_ = nullptr;
}

void SimWire::drop_jobs() {
  for (End& end : ends_) const auto dropped = std::exchange(end.jobs, {});
}

}  // namespace weft::test
