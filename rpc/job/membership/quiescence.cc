#include <weft/rpc/job/membership/quiescence.h>

#include <weft/rpc/codec/packed.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/job/membership/job_membership.h>

#include <algorithm>
#include <set>
#include <utility>

namespace weft::rpc::detail {
namespace {

// The pause before the next look at a busy member, and between waves. It starts with the first value and
// doubles up to the second.
constexpr std::chrono::milliseconds first_pause{1}, longest_pause{50};
// `last_wave_timeout`: a member that gives up calls one more wave, to tell the others, and waits for them for
// this time. If the others call the wave later, their error names the missing member. `shortest`: the minimum
// timeout of a wave.
constexpr std::chrono::nanoseconds last_wave_timeout = std::chrono::seconds{1}, shortest{1};

std::string calls(std::uint64_t number) {
  return std::to_string(number) + (number == 1 ? " call" : " calls");
}

}  // namespace

bool proves_quiet(const Wave& before, const Wave& now) {
  if (now.empty() || before != now) return false;
  std::uint64_t sent = 0, received = 0;
  for (const auto& [name, work] : now) {
    if (work.served + work.made != 0) return false;
    sent += work.sent;
    received += work.received;
  }
  return sent == received;
}

std::optional<Error> given_up(const Wave& wave) {
  std::string busy;
  for (const auto& [name, work] : wave) {
    if (work.cancelled) return Error(ErrorKind::aborted, "'" + name + "' has cancelled quiesce()");
    if (work.given_up)
      busy += (busy.empty() ? "'" : ", '") + name + "' (" + calls(work.served) + " served, " +
              calls(work.made) + " made)";
  }
  if (busy.empty()) return std::nullopt;
  return Error(ErrorKind::deadline_exceeded, "quiesce: calls are still in flight at " + busy);
}

Future<void> Quiescence::of(std::shared_ptr<AgentCore> core, std::shared_ptr<JobMembership> membership,
                            CollectiveOptions options) {
  auto one = std::make_shared<Quiescence>(std::move(core), std::move(membership), std::move(options));
  one->promise_->on_cancel([weak = std::weak_ptr(one)] {
    if (const auto self = weak.lock()) self->loop_->post([self] { self->cancel(); });
  });
  auto future = one->promise_->future();
  one->loop_->post([one] { one->look(); });
  return future;
}

Quiescence::Quiescence(std::shared_ptr<AgentCore> core, std::shared_ptr<JobMembership> membership,
                       CollectiveOptions options)
    : core_(std::move(core)),
      membership_(std::move(membership)),
      options_(std::move(options)),
      loop_(core_->pick_loop()),
      deadline_(later(loop_->now(), options_.timeout.value_or(core_->default_timeout()))),
      promise_(std::in_place, loop_),
      pause_(first_pause) {}

MemberWork Quiescence::work() const {
  std::set<std::string> names(options_.among.begin(), options_.among.end());
  if (names.empty())
    for (const Member& member : membership_->members()) names.insert(member.name);
  // The calls in flight are read before the requests: a call that begins in between is counted in the
  // requests.
  const auto served = static_cast<std::uint64_t>(std::max<std::int64_t>(core_->accounts()->served_work(), 0));
  const auto made = static_cast<std::uint64_t>(std::max<std::int64_t>(core_->accounts()->made_work(), 0));
  const Sessions::Requests found = core_->sessions().requests_with(names);
  return {.served = served, .made = made, .sent = found.sent, .received = found.received, .ever = found.ever};
}

void Quiescence::look() {
  if (over_ || in_wave_) return;
  MemberWork found = work();
  const bool busy = found.served + found.made != 0;
  found.given_up = busy && loop_->now() >= deadline_;
  found.cancelled = cancelled_;
  if (busy && !found.given_up && !cancelled_ && !core_->ended()) return look_later();
  arrive(found);
}

void Quiescence::look_later() {
  loop_->schedule(std::min(loop_->now() + pause_, deadline_), [self = shared_from_this()] { self->look(); });
  pause_ = std::min(2 * pause_, longest_pause);
}

void Quiescence::arrive(const MemberWork& work) {
  using Gathered = Result<std::map<std::string, Buffer>>;
  CollectiveOptions wave = options_;
  // Separates the waves from the program's own collectives of the same name.
  wave.name = "quiesce" + (options_.name.empty() ? "" : " " + options_.name);
  wave.timeout = deadline_ == Clock::time_point::max()
                     ? no_timeout
                     : std::max<std::chrono::nanoseconds>(deadline_ - loop_->now(),
                                                          work.given_up ? last_wave_timeout : shortest);
  in_wave_ = true;
  membership_->gather(std::move(wave), type_text<MemberWork>(), pack(work))
      .then([self = shared_from_this()](Gathered&& gathered) {
        auto held = std::make_shared<Gathered>(std::move(gathered));
        self->loop_->post([self, held] { self->arrived(std::move(*held)); });
      });
}

void Quiescence::arrived(Result<std::map<std::string, Buffer>>&& gathered) {
  in_wave_ = false;
  auto now = capture([&] {
    Wave wave;
    for (const auto& [name, bytes] : std::move(gathered).get()) wave.emplace(name, unpack<MemberWork>(bytes));
    if (const auto error = given_up(wave)) throw *error;
    return wave;
  });
  if (!now.ok()) return end(now.error());
  if (proves_quiet(before_, now.value())) return end(Result<void>{});
  // The first two waves follow each other at once. If they found calls in flight, the next ones are paused.
  const bool first = before_.empty();
  before_ = std::move(now.value());
  if (first || cancelled_) return look();
  look_later();
}

// The others wait in the next wave. This member must take part in that wave, to tell the others that it has
// cancelled.
void Quiescence::cancel() {
  if (over_ || !promise_) return;
  cancelled_ = true;
  std::exchange(promise_, std::nullopt)
      ->fail(Error(ErrorKind::cancelled, "quiesce: cancelled by the caller"));
  look();
}

void Quiescence::end(Result<void> result) {
  over_ = true;
  if (auto promise = std::exchange(promise_, std::nullopt)) promise->complete(std::move(result));
}

}  // namespace weft::rpc::detail
