// Each worker runs the same loop, without a coordinator:
//
//   1. agree():  reads the generation in the store. If this worker is in a newer one than its last, it takes
//                part. If it may propose, it computes the next generation (plan/generation.h) and replaces
//                the old one by compare-and-set; the first worker decides. Otherwise it waits for a change.
//   2. train():  forms the group, synchronizes the state, runs the body. Back to 1 if something fails, or
//                workers join or leave.
//   3. finish(): after the body all ranks run a barrier, and then mark the generation as finished, by
//                compare-and-set too. A rank that fails in the barrier finds either that mark, or a next
//                generation in which all continue from the last commit.
#include <weft/parallel/elastic/run.h>

#include <weft/parallel/collectives/internal/group/collectives_layer.h>
#include <weft/parallel/collectives/internal/group/group_service.h>
#include <weft/parallel/elastic/internal/board.h>
#include <weft/parallel/elastic/internal/state_access.h>
#include <weft/rpc/call/invoke.h>
#include <weft/rpc/core/duration_text.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <ATen/Functions.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>
#include <variant>

namespace weft::elastic {
namespace detail {
namespace {

using rpc::AgentId;
using rpc::ErrorKind;

constexpr int max_failures = 3;                       // of the same workers, without a commit between them
constexpr auto leave_poll = std::chrono::seconds{1};  // State::leave() does not wake a waiting run()
constexpr std::size_t max_named = 8;                  // workers in a log line
constexpr int log_fraction = 60;  // a worker that has waited for 1/60 of its patience logs the reason

// The times of a training. All follow from the detection time, unless the program sets them.
struct Times {
  std::chrono::nanoseconds detection, hang, patience;
  std::chrono::nanoseconds ask_interval;  // while a group is formed, its members are asked so often
};

Times times_of(const RunOptions& options, const rpc::Heartbeat& heartbeat) {
  const auto set_or = [](std::chrono::nanoseconds set, std::chrono::nanoseconds derived) {
    return set.count() > 0 ? set : derived;
  };
  const bool is_off = heartbeat.interval.count() <= 0 || heartbeat.timeout.count() <= 0;
  const auto detection = std::min<std::chrono::nanoseconds>(
      is_off ? rpc::Heartbeat{}.timeout : heartbeat.timeout, std::chrono::hours{1});
  const auto hang = set_or(options.hang, 12 * detection);
  const Times times{
      .detection = detection,
      .hang = hang,
      .patience = set_or(options.patience, std::max(120 * detection, 10 * hang)),
      .ask_interval = std::min<std::chrono::nanoseconds>(std::chrono::seconds{1}, detection / 5)};
  if (times.hang < detection)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "elastic::run: RunOptions::hang is " + rpc::seconds_text(times.hang) + ", expected at least " +
            rpc::seconds_text(detection) +
            ", in which the agent detects lost peers (Heartbeat::timeout): a lost worker would be "
            "taken for a worker that hangs");
  return times;
}

// Whether the error is that of a collective, or of a call to a lost worker. Then the next generation may
// succeed.
bool ends_a_generation(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::peer_lost:
    case ErrorKind::unavailable:
    case ErrorKind::shut_down:
    case ErrorKind::aborted:
    case ErrorKind::cancelled:
    case ErrorKind::deadline_exceeded:
      return true;
    default:
      return false;
  }
}

class Training {
 public:
  Training(rpc::Job& job, State& state, const std::function<void(collectives::Group)>& body,
           const RunOptions& options)
      : agent_(job.agent()),
        state_(state),
        access_(state),
        body_(body),
        options_(options),
        limits_(options.workers.or_else(launcher_limits())),
        times_(times_of(options, job.agent().core()->options().heartbeat)),
        board_(Board::open(job, options.name)) {}
  ~Training() {
    access_.end();
    (void)rpc::capture([&] { board_->withdraw(); });
    board_->close();
  }
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  Outcome run() {
    access_.begin(options_.sync_later);
    for (std::uint64_t changes = 0;; ++changes) {
      const auto agreed = agree();
      if (const auto* const outcome = std::get_if<Outcome>(&agreed)) {
        if (*outcome == Outcome::left) {
          recover_if_stale();
          if (!access_.has_values())
            throw rpc::Error(
                ErrorKind::aborted,
                "elastic training '" + options_.name +
                    "': this worker leaves after a change of the workers that has failed, and its "
                    "state is incomplete");
        }
        return *outcome;
      }
      const Generation generation = std::get<Generation>(agreed);
      if (options_.max_changes && changes > *options_.max_changes)
        throw rpc::Error(ErrorKind::resource_exhausted,
                         "elastic training '" + options_.name + "' has changed its workers " +
                             std::to_string(changes) + " times, expected at most " +
                             std::to_string(*options_.max_changes) + " (RunOptions::max_changes)");
      if (const auto outcome = train(generation)) return *outcome;
    }
  }

 private:
  std::variant<Generation, Outcome> agree();
  std::string too_few_text(std::size_t ready, const Generation& current) const;
  std::string outside_text(const Generation& current) const;
  rpc::Error too_few(std::size_t ready, const Generation& current) const;
  std::optional<Outcome> train(const Generation& generation);
  collectives::Group form_group(const Generation& generation);
  void begin(const Generation& generation, const collectives::Group& group);
  // The state of the board that this rank has read; initially none.
  struct Known {
    std::uint64_t version = 0;
    bool change = false;
  };
  Vote vote(const Generation& generation, const collectives::Group& group, Known& known, Vote own) const;
  bool finish(const Generation& generation) const;
  void recover_if_stale();
  void failed(const Generation& generation);  // in the handler of the error
  std::string group_name(const Generation& generation) const;
  // waited: how long this worker has waited for the others to form the generation's group; nullopt: it does
  // not wait for it.
  void check_members(const Generation& generation, std::optional<rpc::Clock::duration> waited);
  // nullopt: the member does not answer within the detection time.
  std::vector<std::pair<AgentId, std::optional<collectives::Activity>>> activities(
      const Generation& generation, std::size_t most = SIZE_MAX) const;
  // Whether the members of that generation have begun collectives within this worker's patience.
  bool progresses(const Generation& current);

  rpc::Agent& agent_;
  State& state_;
  StateAccess access_;
  const std::function<void(collectives::Group)>& body_;
  const RunOptions& options_;
  const WorkerLimits limits_;
  const Times times_;
  const std::shared_ptr<Board> board_;

  // Whether the state is that of a failed step. It is restored only in the next generation. If the training
  // turns out to have finished, because another rank was quicker in the last barrier, this state is the
  // final one.
  bool stale_ = false;
  Generation last_;                 // in which this worker took part
  std::vector<std::string> names_;  // of the last generation that has begun, by rank
  struct Failures {
    int count = 0;
    std::vector<AgentId> members;
    std::uint64_t commits = 0;
  } failures_;
  // The progress of a generation that this worker watches from outside.
  struct Progress {
    std::uint64_t generation = 0;
    std::map<AgentId, std::uint64_t> begun;
    rpc::Clock::time_point asked, changed;
  } progress_;
  // Members for which a collective of the generation that has failed waited in vain: they do not come to the
  // next group either.
  std::set<AgentId> late_;
  struct Idle {
    std::uint64_t begun = 0;
    rpc::Clock::time_point since;
  };
  std::map<AgentId, Idle> idle_;  // members that do not take part in the group that is being formed
};

std::variant<Generation, Outcome> Training::agree() {
  auto few_until = rpc::Clock::time_point::max();  // when the patience with too few workers ends
  const auto log_at = rpc::later(rpc::Clock::now(), times_.patience / log_fraction);
  std::string logged;  // the last reason for waiting
  for (bool newcomer = last_.number == 0; !access_.leaving(); newcomer = false) {
    const Board::View view = board_->refresh();
    const Generation& current = view.current;
    if (current.finished) {
      if (newcomer)
        agent_.core()->log().write(rpc::LogLevel::warning,
                                   "elastic training '" + options_.name +
                                       "' has already finished in this store: run() returns without "
                                       "training; another training needs a new store");
      return Outcome::finished;
    }
    if (!view.ready.contains(agent_.id())) {  // not announced yet, or considered dead or hung
      if (const auto why = last_.number == 0 ? std::nullopt : board_->end_exclusion())
        agent_.core()->log().write(rpc::LogLevel::warning, "elastic training '" + options_.name +
                                                               "': the others have continued without this "
                                                               "worker, because " +
                                                               *why + "; it joins again");
      board_->announce();
      continue;
    }
    const auto is_candidate = [&](const AgentId& id) {
      return std::any_of(view.candidates.begin(), view.candidates.end(),
                         [&](const Candidate& candidate) { return candidate.id == id; });
    };
    const auto& members = current.members;
    const bool newer = current.number > last_.number;
    const bool mine = current.contains(agent_.id());
    if (newer && mine && std::all_of(members.begin(), members.end(), is_candidate)) return current;

    const auto now = rpc::Clock::now();
    std::string reason;  // why this worker waits; empty: not known
    // If a member of the newer generation is ready but has not been seen in the job yet, it will be seen:
    // this worker waits, and does not replace that generation.
    const bool over = !newer || std::any_of(members.begin(), members.end(),
                                            [&](const AgentId& id) { return view.is_unavailable(id); });
    if (over && is_candidate(agent_.id()) && may_propose(current, view.candidates, agent_.id())) {
      if (const auto next = next_generation(current, view.candidates, limits_)) {
        board_->replace(view, *next);
        continue;
      }
      if (few_until == rpc::Clock::time_point::max()) few_until = rpc::later(now, times_.patience);
      if (now >= few_until) throw too_few(view.candidates.size(), current);
      reason = too_few_text(view.candidates.size(), current) + ": waits for more workers";
    } else {
      few_until = rpc::Clock::time_point::max();
      if (!mine && !members.empty()) {
        reason = outside_text(current);
        if (!progresses(current))
          throw rpc::Error(ErrorKind::deadline_exceeded, reason + "; they have made no progress for " +
                                                             rpc::seconds_text(times_.patience) +
                                                             " (RunOptions::patience)");
      }
    }
    if (now >= log_at && reason != std::exchange(logged, reason) && !reason.empty())
      agent_.core()->log().write(rpc::LogLevel::warning, reason);
    board_->wait(view.version, std::min(few_until, now + leave_poll));
  }
  return Outcome::left;
}

std::string Training::too_few_text(std::size_t ready, const Generation& current) const {
  const std::size_t least = limits_.least(current);
  return "elastic training '" + options_.name + "': " + std::to_string(ready) +
         (ready == 1 ? " worker is" : " workers are") + " ready, expected at least " + std::to_string(least);
}

std::string Training::outside_text(const Generation& current) const {
  std::string members;
  const std::size_t named = std::min(current.members.size(), max_named);
  for (std::size_t i = 0; i < named; ++i) members += (i == 0 ? "" : ", ") + current.members[i].name;
  if (const std::size_t others = current.members.size() - named; others > 0)
    members += " and " + std::to_string(others) + " others";
  return "elastic training '" + options_.name + "': this worker waits while " + members +
         " train; if they have died, it waits until their leases end";
}

rpc::Error Training::too_few(std::size_t ready, const Generation& current) const {
  return {ErrorKind::deadline_exceeded, too_few_text(ready, current) + ", for which this worker has waited " +
                                            rpc::seconds_text(times_.patience) + " (RunOptions::patience)"};
}

std::optional<Outcome> Training::train(const Generation& generation) {
  last_ = generation;
  std::optional<collectives::Group> group;
  try {
    group = form_group(generation);
    late_.clear();
    recover_if_stale();
    access_.set_votes([this, &generation, &group, known = Known()](Vote own) mutable {
      return vote(generation, *group, known, own);
    });
    access_.begin_generation(generation.number);
    begin(generation, *group);
    body_(*group);
    access_.end_body();
    access_.set_votes(nullptr);
    group->barrier().get();
    if (finish(generation)) return Outcome::finished;
    stale_ = true;  // another rank has failed in the barrier: all continue from the last commit
    return std::nullopt;
  } catch (const WorkersChanged&) {
    access_.set_votes(nullptr);
    if (access_.leaving()) return Outcome::left;
    return std::nullopt;
  } catch (const rpc::Error& error) {
    access_.set_votes(nullptr);
    if (group) group->abort(error.what());
    if (!ends_a_generation(error.kind())) throw;
    late_.merge(collectives::CollectivesLayer::of(*agent_.core())->late_members());
    failed(generation);
    return std::nullopt;
  } catch (const std::exception& error) {
    access_.set_votes(nullptr);
    if (group) group->abort(error.what());
    throw;
  } catch (...) {
    access_.set_votes(nullptr);
    if (group) group->abort("the body has thrown an object that is not a std::exception");
    throw;
  }
}

// The rendezvous of a group waits for all members. If one is gone, this worker cancels it. The store may
// learn late that a member has died, so the members are called if the rendezvous takes long.
collectives::Group Training::form_group(const Generation& generation) {
  collectives::GroupOptions options = options_.group;
  options.name = group_name(generation);
  options.late_after = times_.hang;
  options.timeout = std::max(options.timeout, 2 * times_.hang);
  options.stall_warning = times_.detection;
  options.members.clear();
  for (const AgentId& member : generation.members) options.members.push_back(member.name);
  struct Made {
    std::optional<rpc::Result<collectives::Group>> group;
    std::atomic<bool> ready = false;
  };
  const auto made = std::make_shared<Made>();
  auto forming = collectives::Group::create(agent_, options)
                     .then([board = board_, made](rpc::Result<collectives::Group>&& group) {
                       made->group.emplace(std::move(group));
                       made->ready = true;
                       board->poke();
                       return true;
                     });
  const auto begun = rpc::Clock::now();
  idle_.clear();
  for (Board::View view = board_->view(); !made->ready; view = board_->view()) {
    const auto gone = std::find_if(generation.members.begin(), generation.members.end(),
                                   [&](const AgentId& member) { return view.is_unavailable(member); });
    if (view.current.number > generation.number || gone != generation.members.end()) {
      forming.cancel();
      throw rpc::Error(ErrorKind::aborted,
                       "group '" + options.name + "': before the group was formed, " +
                           (gone != generation.members.end()
                                ? "worker '" + gone->name + "' was gone"
                                : "generation " + std::to_string(view.current.number) + " began"));
    }
    if (!board_->wait(view.version, rpc::Clock::now() + times_.ask_interval))
      check_members(generation, rpc::Clock::now() - begun);
  }
  return std::move(*made->group).get();
}

void Training::begin(const Generation& generation, const collectives::Group& group) {
  Change change{.group = group, .generation = generation.number};
  change.synced_from = state_.sync(group);
  const std::vector<std::string> before = std::exchange(names_, group.members());
  const auto without = [](const std::vector<std::string>& from, const std::vector<std::string>& names) {
    std::vector<std::string> left;
    for (const std::string& name : from)
      if (std::find(names.begin(), names.end(), name) == names.end()) left.push_back(name);
    return left;
  };
  change.joined = without(names_, before);
  change.gone = without(before, names_);
  if (options_.on_change) options_.on_change(change);
}

// All ranks call it at a commit or a step. Ranks may know different joins and departures, so they agree by a
// collective.
Vote Training::vote(const Generation& generation, const collectives::Group& group, Known& known,
                    Vote own) const {
  if (access_.leaving()) {
    board_->withdraw();
    known.change = true;
  } else if (board_->wait(known.version, rpc::Clock::now())) {
    const Board::View view = board_->view();
    const auto next = next_generation(generation, view.candidates, limits_);
    known = {view.version, next && next->members != generation.members};
  }
  const at::Tensor any = at::tensor({int{known.change}, int{own.veto}}, at::kByte);
  group.inlined().all_reduce(any, collectives::ReduceOp::max).get();
  const auto* const agreed = any.const_data_ptr<std::uint8_t>();
  return {.change = agreed[0] != 0, .veto = agreed[1] != 0};
}

bool Training::finish(const Generation& generation) const {
  const Board::View view = board_->refresh();
  if (view.current == generation) {
    Generation done = generation;
    done.finished = true;
    board_->replace(view, done);
  }
  return board_->refresh().current.finished;
}

void Training::recover_if_stale() {
  if (std::exchange(stale_, false)) access_.recover();
}

void Training::failed(const Generation& generation) {
  const bool again = failures_.members == generation.members && failures_.commits == state_.commits();
  failures_ = {again ? failures_.count + 1 : 1, generation.members, state_.commits()};
  stale_ = true;
  if (failures_.count >= max_failures) throw;
  // A quicker worker may already have removed the lost members.
  if (board_->refresh().current.number == generation.number) check_members(generation, std::nullopt);
}

std::string Training::group_name(const Generation& generation) const {
  return options_.name + " " + std::to_string(generation.number);
}

std::vector<std::pair<AgentId, std::optional<collectives::Activity>>> Training::activities(
    const Generation& generation, std::size_t most) const {
  std::vector<std::pair<AgentId, rpc::Future<collectives::Activity>>> asked;
  for (const AgentId& member : generation.members)
    if (member != agent_.id() && asked.size() < most)
      asked.emplace_back(member, agent_.peer(member.name)
                                     .only(member)
                                     .with(rpc::CallOptions{.timeout = times_.detection})
                                     .call<&collectives::GroupService::activity>(group_name(generation)));
  std::vector<std::pair<AgentId, std::optional<collectives::Activity>>> answers;
  for (auto& [member, answer] : asked) {
    auto result = rpc::capture([&answer = answer] { return answer.get(); });
    const auto kind = result.ok() ? std::nullopt : std::optional(rpc::error_kind(result.error()));
    if (kind && ends_a_generation(*kind)) {
      answers.emplace_back(member, std::nullopt);
    } else {  // an agent that does not know the question, of an earlier version, is alive
      answers.emplace_back(member, kind ? collectives::Activity{.takes_part = true} : result.value());
    }
  }
  (void)board_->view();  // throws if it is this agent that has ended
  return answers;
}

bool Training::progresses(const Generation& current) {
  const auto now = rpc::Clock::now();
  if (progress_.generation != current.number) progress_ = {current.number, {}, now, now};
  if (now < rpc::later(progress_.asked, times_.patience / log_fraction)) return true;
  progress_.asked = now;
  for (const auto& [member, activity] : activities(current, max_named))
    if (activity && std::exchange(progress_.begun[member], activity->begun) != activity->begun)
      progress_.changed = now;
  return now < rpc::later(progress_.changed, times_.patience);
}

// The store may not know of a death yet: if no host watches the worker, the store waits for the end of its
// lease. A worker that answers, and takes no part although the others wait, hangs in code of the program. If
// a worker that is removed or excluded continues, it announces itself again and joins at the next commit of
// the others.
void Training::check_members(const Generation& generation, std::optional<rpc::Clock::duration> waited) {
  for (const auto& [member, activity] : activities(generation)) {
    if (!activity) {
      board_->remove(member);
      continue;
    }
    const auto now = rpc::Clock::now();
    Idle& idle = idle_.try_emplace(member, Idle{activity->begun, now}).first->second;
    if (idle.begun != activity->begun) idle = {activity->begun, now};
    const auto limit = late_.contains(member) ? times_.detection : times_.hang;
    if (waited && std::min(*waited, now - idle.since) >= limit && !activity->takes_part &&
        board_->refresh().current.number == generation.number) {
      const std::string why = "'" + member.name + "' does not form the group of generation " +
                              std::to_string(generation.number) + ", for which others have waited for " +
                              rpc::seconds_text(*waited);
      agent_.core()->log().write(rpc::LogLevel::warning, "elastic training '" + options_.name + "': worker " +
                                                             why + ": the others continue without it");
      board_->exclude(member, why);
    }
  }
}

}  // namespace

Outcome run(rpc::Job& job, State& state, const std::function<void(collectives::Group)>& body,
            const RunOptions& options) {
  if (job.rendezvous().fixed_world)
    throw rpc::Error(
        ErrorKind::failed_precondition,
        "elastic::run: the job has a fixed size, expected an elastic world: weft launch --elastic, "
        "or Rendezvous::fixed_world = false");
  const WorkerLimits workers = options.workers.or_else(launcher_limits());
  if (workers.max != 0 && workers.max < std::max(workers.min, workers.start))
    throw rpc::Error(
        ErrorKind::invalid_argument,
        "elastic::run: at least " + std::to_string(workers.min) + " workers, at the start " +
            std::to_string(workers.start) + ", at most " + std::to_string(workers.max) +
            ", expected a maximum that is not below the other two (RunOptions::workers, weft launch "
            "--min and --max)");
  job.join().get();
  return Training(job, state, body, options).run();
}

}  // namespace detail

WorkerLimits launcher_limits() {
  const auto read = [](const char* name) -> std::size_t {
    const char* const text = std::getenv(name);
    if (text == nullptr || *text == '\0') return 0;
    std::size_t number = 0;
    const std::string_view digits = text;
    const auto [end, error] = std::from_chars(digits.begin(), digits.end(), number);
    if (error != std::errc() || end != digits.end() || number == 0)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "elastic::launcher_limits: " + std::string(name) +
                                                             " is '" + text +
                                                             "', expected a positive number");
    return number;
  };
  return {.min = read("WEFT_MIN_WORKERS"), .max = read("WEFT_MAX_WORKERS")};
}

}  // namespace weft::elastic
