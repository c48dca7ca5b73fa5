#include <weft/parallel/collectives/internal/messages/plan_transfer.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace weft::collectives {

namespace {

constexpr std::size_t half_bytes = 2;  // of an element that is sent as a 16-bit type

// A connection borrows the memory of a large message until the peer has acknowledged the message. Within a
// run, other steps hide that time, but the end of the transfer would wait for it. Therefore the last messages
// are copied, up to this number of bytes. The connection itself copies messages of up to lent_bytes.
constexpr std::size_t max_copied_bytes = 512 << 10, lent_bytes = 64 << 10;

bool takes_message(const Step& step) {
  return step.kind == Step::Kind::receive || step.kind == Step::Kind::reduce;
}

}  // namespace

PlanTransfer::PlanTransfer(int rank, int ranks, Plan plan, PlanMemory memory,
                           std::optional<Reduction> reduction, Done done, std::optional<c10::ScalarType> wire,
                           int divisor, rpc::MemoryPool* pool)
    : rank_(rank),
      divisor_(divisor == 0 ? ranks : divisor),
      plan_(std::move(plan)),
      memory_(std::move(memory)),
      reduction_(reduction),
      wire_(wire),
      pool_(pool),
      done_(std::move(done)),
      progress_(plan_.steps.size()),
      left_(plan_.steps.size()),
      agreement_left_(plan_.agreement) {
  for (std::uint32_t index = 0; index < plan_.steps.size(); ++index) {
    const Step& step = plan_.steps[index];
    progress_[index].waits_for = step.after.size();
    for (const std::uint32_t earlier : step.after) progress_[earlier].dependents.push_back(index);
    if (takes_message(step)) expected_.emplace(Letter{step.peer, step.label}, index);
  }
  if (plan_.accumulator != 0 && memory_.accumulator == nullptr) {
    own_accumulator_ = rpc::Buffer::allocate(plan_.accumulator * reduction_->accumulator_size());
    memory_.accumulator = own_accumulator_.data();
  }
  choose_copies();
}

// Chooses from the end of the plan: sends for which no step waits.
void PlanTransfer::choose_copies() {
  std::size_t copied = 0;
  for (auto index = plan_.steps.size(); index-- > 0;) {
    const Step& step = plan_.steps[index];
    if (step.kind != Step::Kind::send || !progress_[index].dependents.empty()) continue;
    const std::size_t bytes = step.range.size() * size_of(step.place);
    if (copied + bytes > max_copied_bytes) return;
    copied += bytes;
    progress_[index].copies = bytes > lent_bytes;
  }
}

void PlanTransfer::begin(Outbox& outbox) {
  const auto self = shared_from_this();  // its owner may wait for its end
  outbox_ = &outbox;
  for (std::uint32_t index = 0; index < plan_.steps.size(); ++index) {
    if (progress_[index].waits_for == 0) may_run(index);
  }
  run_ready();
}

void PlanTransfer::deliver(int from, std::uint32_t label, rpc::Buffer bytes) {
  if (ended()) return;
  const auto self = shared_from_this();
  const Letter letter{from, label};
  const auto step = expected_.find(letter);
  if (step == expected_.end() || early_.contains(letter)) {
    return end(std::make_exception_ptr(rpc::Error(
        rpc::ErrorKind::protocol_error, "rank " + std::to_string(from) + " sent a message with the label " +
                                            std::to_string(label) +
                                            ", expected a label for which a step of the collective waits")));
  }
  const std::uint32_t index = step->second;
  early_.emplace(letter, std::move(bytes));
  if (outbox_ == nullptr || progress_[index].waits_for != 0) return;
  ready_.push(index);
  run_ready();
}

void PlanTransfer::fail(std::exception_ptr error) {
  const auto self = shared_from_this();
  if (!ended()) end(std::move(error));
}

std::vector<int> PlanTransfer::awaited() const {
  std::vector<int> ranks;
  for (const auto& [letter, index] : expected_) {
    if (!early_.contains(letter) && (ranks.empty() || ranks.back() != letter.first))
      ranks.push_back(letter.first);
  }
  return ranks;
}

// Queues a step whose predecessors have completed. If the step receives a message, the message must also
// have arrived.
void PlanTransfer::may_run(std::uint32_t index) {
  const Step& step = plan_.steps[index];
  if (!takes_message(step) || early_.contains({step.peer, step.label})) ready_.push(index);
}

void PlanTransfer::run_ready() {
  if (running_) return;  // a caller of this function runs the loop below, and continues it
  running_ = true;
  while (!ready_.empty() && !ended()) {
    const std::uint32_t index = ready_.top();  // the earliest: the others have waited for it the longest
    ready_.pop();
    start(index);
  }
  running_ = false;
  if (left_ == 0 && !ended()) end(nullptr);
}

void PlanTransfer::start(std::uint32_t index) {
  const Step& step = plan_.steps[index];
  const std::size_t n = step.range.size();
  switch (step.kind) {
    case Step::Kind::send: {
      rpc::Buffer bytes(shared_from_this(), n == 0 ? nullptr : at(step.place, step.range.begin),
                        n * size_of(step.place));
      if (is_compressed(step.place) && n != 0) {
        bytes = compressed(bytes.data(), n);
      } else if (progress_[index].copies) {
        const rpc::Buffer copy = allocate(bytes.size());
        std::memcpy(copy.data(), bytes.data(), bytes.size());
        bytes = copy;
      }
      if (progress_[index].copies) {
        outbox_->send(step.peer, step.label, bytes, [] {});
        break;
      }
      outbox_->send(step.peer, step.label, bytes, [self = shared_from_this(), index] {
        self->over(index);
        self->run_ready();
      });
      return;
    }
    case Step::Kind::receive:
    case Step::Kind::reduce: {
      const auto letter = early_.extract({step.peer, step.label});
      expected_.erase({step.peer, step.label});
      const bool compresses =
          is_compressed(step.kind == Step::Kind::reduce ? Place::accumulator : step.place);
      const bool fits = letter.mapped().size() == n * half_bytes;
      if (!take(step, compresses && fits ? expanded(letter.mapped(), n) : letter.mapped())) return;
      break;
    }
    case Step::Kind::finish: {
      const std::byte* const from = at(Place::accumulator, step.source);
      std::byte* const to = at(Place::output, step.range.begin);
      if (from != to || reduction_->finishes()) reduction_->finish(to, from, n, divisor_);
      if (is_compressed(Place::output)) {  // the value that others will have
        const rpc::Buffer rounded = expanded(compressed(to, n), n);
        std::memcpy(to, rounded.data(), rounded.size());
      }
      break;
    }
    case Step::Kind::copy: {
      const std::byte* const from = at(Place::input, step.source);
      std::byte* const to = at(step.place, step.range.begin);
      if (from != to) std::memmove(to, from, n * memory_.item_size);
      break;
    }
  }
  over(index);
}

// A page of fresh memory costs more than copying into it (memory_pool.h).
rpc::Buffer PlanTransfer::allocate(std::size_t bytes) const {
  return pool_ == nullptr ? rpc::Buffer::allocate(bytes) : pool_->allocate(bytes);
}

rpc::Buffer PlanTransfer::compressed(const std::byte* floats, std::size_t n) const {
  rpc::Buffer message = allocate(n * half_bytes);
  narrow(*wire_, message.data(), reinterpret_cast<const float*>(floats), n);
  return message;
}

rpc::Buffer PlanTransfer::expanded(const rpc::Buffer& message, std::size_t n) const {
  rpc::Buffer floats = rpc::Buffer::allocate(n * sizeof(float));
  widen(*wire_, reinterpret_cast<float*>(floats.data()), message.data(), n);
  return floats;
}

// Returns false if the message does not fit the step; then the transfer has ended.
bool PlanTransfer::take(const Step& step, const rpc::Buffer& message) {
  const std::size_t n = step.range.size();
  const bool reduces = step.kind == Step::Kind::reduce;
  const bool accumulated = reduces && message.size() == n * reduction_->accumulator_size();
  if (!accumulated && message.size() != n * memory_.item_size) {
    end(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::protocol_error,
                                           "rank " + std::to_string(step.peer) + " sent " +
                                               std::to_string(message.size()) + " bytes where " +
                                               std::to_string(n) + " elements of " +
                                               std::to_string(memory_.item_size) + " bytes are expected")));
    return false;
  }
  if (n == 0) return true;
  if (!reduces) {
    std::memcpy(at(step.place, step.range.begin), message.data(), message.size());
    return true;
  }
  const Reduction::Operand theirs{message.data(), accumulated};
  const Reduction::Operand own{at(step.place, step.source), step.place == Place::accumulator};
  const bool theirs_first = step.peer < rank_;
  reduction_->combine(at(Place::accumulator, step.range.begin), theirs_first ? theirs : own,
                      theirs_first ? own : theirs, n);
  return true;
}

void PlanTransfer::over(std::uint32_t index) {
  if (ended()) return;
  --left_;
  if (index < plan_.agreement && --agreement_left_ == 0) agreed_ = FlightClock::now();
  for (const std::uint32_t dependent : progress_[index].dependents) {
    if (--progress_[dependent].waits_for == 0) may_run(dependent);
  }
}

std::size_t PlanTransfer::size_of(Place place) const {
  return place == Place::accumulator ? reduction_->accumulator_size() : memory_.item_size;
}

std::byte* PlanTransfer::at(Place place, std::size_t element) const {
  // The input is never written.
  std::byte* const base = place == Place::input    ? const_cast<std::byte*>(memory_.input)
                          : place == Place::output ? memory_.output
                                                   : memory_.accumulator;
  return base + element * size_of(place);
}

void PlanTransfer::end(std::exception_ptr error) {
  ready_ = {};
  early_.clear();
  std::exchange(done_, nullptr)(std::move(error));
}

}  // namespace weft::collectives
