// Rank r sends Requests to rank 0 as they are made, one message at a time, so that requests made meanwhile
// share the next one. Rank 0 sends each Plan to all ranks. Messages of one sender arrive in order, so all
// ranks start the launches of the plans in one order.
//
// The messages use one group and the collectives another. If a rank leaves, the first group fails, because it
// has a receive in flight at all times; collectives that run in the second group are not affected.
//
// A rank that destroys its reduction sends `closed` to rank 0. When nothing of that rank is left to be
// planned, rank 0 answers with a last plan. The rank then stops receiving, and its state is released.
#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>

#include <weft/parallel/collectives/operation/internal/collective_call.h>
#include <weft/parallel/data_parallel/negotiated/internal/reduction_coordinator.h>
#include <weft/parallel/data_parallel/negotiated/internal/reduction_run.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace weft::data_parallel {

using collectives::Group;

namespace {

using Requests = NegotiationRequests;
using Plan = NegotiationPlan;
using Inbox = std::vector<std::pair<ReductionRequest, PendingReduction>>;
constexpr auto forever = std::chrono::nanoseconds::max();

// In shared memory the collective copies a larger tensor part by part within the caches, which costs less
// than the copies into fused memory.
constexpr std::uint64_t max_fused_in_memory = 256 << 10;

// An error that only the arguments of one collective cause leaves the group usable.
bool concerns_arguments(const rpc::Error& error) {
  return error.kind() == rpc::ErrorKind::invalid_argument || error.kind() == rpc::ErrorKind::unsupported;
}

void check_options(const NegotiationOptions& options) {
  if (options.tuning) (void)FusionTuner(*options.tuning);
  for (std::size_t i = 0; i < options.devices.size(); ++i) {
    const c10::Device device = options.devices[i];
    if (device.is_cpu() || !device.has_index() ||
        std::find(options.devices.begin(), options.devices.begin() + static_cast<std::ptrdiff_t>(i),
                  device) != options.devices.begin() + static_cast<std::ptrdiff_t>(i))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "NegotiationOptions::devices has " + device.str() +
                           ", expected devices other than cpu, with an index, each once");
  }
}

Group split_off(const Group& group, collectives::GroupOptions options, const std::string& name) {
  options.name = group.name() + "/" + name;
  return group.split(0, group.rank(), options).get().value();
}

collectives::GroupOptions without_shared_memory(collectives::GroupOptions options) {
  options.shared_memory = false;
  return options;
}

}  // namespace

// One rank's part. Its functions run on its loop, except those under "Any thread".
class NegotiatedReduction::State : public std::enable_shared_from_this<State> {
 public:
  State(rpc::Agent& agent, const Group& group, const NegotiationOptions& options)
      : core_(agent.core()),
        loop_(core_->pick_loop()),
        timeline_(rpc::Tracer::of(*core_)),
        devices_(options.devices),
        control_(split_off(group, without_shared_memory(group.options()), "negotiation")),
        fusion_(options.fusion) {
    expect_equal_numbers_of_devices();
    lanes_.push_back(
        std::make_unique<ReductionLane>(split_off(group, group.options(), "reduction"), at::kCPU));
    for (const c10::Device device : devices_) {
      const std::string name = "reduction " + std::to_string(lanes_.size());
      lanes_.push_back(std::make_unique<ReductionLane>(split_off(group, group.options(), name), device));
      lanes_.back()->group.prepare(device).get();
    }
  }

  // --- Any thread ---

  int rank() const { return control_.rank(); }
  int size() const { return control_.size(); }
  // Splits the group of messages, in which no other collectives run.
  Group split_group(const std::string& name) const {
    return split_off(control_, lanes_.front()->group.options(), name);
  }

  void start(const NegotiationOptions& options) {
    if (rank() != 0) return receive_plan();
    const auto max_fused_request = lanes_.front()->group.backend() == collectives::GroupBackend::memory
                                       ? max_fused_in_memory
                                       : std::numeric_limits<std::uint64_t>::max();
    coordinator_ = std::make_shared<ReductionCoordinator>(
        loop_, size(), options, max_fused_request,
        [weak = weak_from_this()](int to, const Plan& plan) {
          if (const auto self = weak.lock()) to == 0 ? self->execute(plan) : self->send_plan(to, plan);
        },
        [core = core_](rpc::LogLevel level, const std::string& text) { core->log().write(level, text); });
    for (int from = 1; from < size(); ++from) receive_requests(from);
  }

  rpc::Future<void> all_reduce(const std::string& name, std::vector<at::Tensor> tensors,
                               const ReductionCall& call) {
    PendingReduction pending{name, std::move(tensors), call, {}};
    auto future = pending.promise.future();
    if (const auto reserved = rpc::capture([&] { reserve(name); }); !reserved.ok()) {
      pending.promise.fail(reserved.error());
      return future;
    }
    auto request = rpc::capture([&] {
      check_reduction(pending, devices_);
      collectives::note_writes(pending.tensors);
      for (at::Tensor& tensor : pending.tensors)
        if (tensor.requires_grad() && !tensor.is_sparse()) tensor = tensor.detach();
      return prepare_reduction(pending, devices_);
    });
    if (!request.ok()) {  // the other ranks must not wait for this rank
      pending.refusal = request.error();
      request = ReductionRequest{.name = name, .refusal = rpc::error_of(request.error()).what()};
    }
    pending.times.made = timeline_.now();
    bool first = false;
    {
      rpc::MutexLock lock(mutex_);
      first = inbox_.empty();
      inbox_.emplace_back(std::move(request).get(), std::move(pending));
    }
    if (first) post([](State& self) { self.submit(); });
    return future;
  }

  rpc::Future<int> join() {
    rpc::Promise<int> promise;
    auto future = promise.future();
    bool again = false;
    {
      rpc::MutexLock lock(mutex_);
      again = std::exchange(has_joined_, true);
    }
    if (again) {
      promise.fail(std::make_exception_ptr(
          rpc::Error(rpc::ErrorKind::failed_precondition,
                     "join: this rank has joined already: wait for that future, and call join() again")));
      return future;
    }
    post([promise = std::move(promise)](State& self) mutable {
      if (self.failed_) return self.end_join(std::move(promise), std::make_exception_ptr(*self.failed_));
      self.join_ = std::move(promise);
      self.joining_ = true;
      self.send_requests();
    });
    return future;
  }

  void abort(const std::string& reason) {
    post([reason](State& self) {
      self.fail({rpc::ErrorKind::aborted,
                 "rank " + std::to_string(self.rank()) + " aborted the reduction: " + reason});
    });
  }

  void close() {
    post([](State& self) {
      if (self.join_)
        self.end_join(
            *std::exchange(self.join_, std::nullopt),
            std::make_exception_ptr(rpc::Error(
                rpc::ErrorKind::failed_precondition,
                "join: this rank has destroyed its NegotiatedReduction before all ranks had joined")));
      self.closing_ = true;
      self.send_requests();
    });
  }

  FusionSettings fusion() const {
    rpc::MutexLock lock(mutex_);
    return fusion_;
  }
  Counts counts() const {
    rpc::MutexLock lock(mutex_);
    return counts_;
  }

 private:
  template <class F>
  void post(F f) {
    loop_->post([self = shared_from_this(), f = std::move(f)]() mutable { f(*self); });
  }

  void expect_equal_numbers_of_devices() const {
    const auto counts = control_.all_gather_object(static_cast<std::uint32_t>(devices_.size())).get();
    for (std::size_t other = 1; other < counts.size(); ++other)
      if (counts[other] != counts[0])
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         "NegotiatedReduction: rank 0 has " + std::to_string(counts[0]) +
                             " devices, but rank " + std::to_string(other) + " has " +
                             std::to_string(counts[other]) + ": expected equal numbers");
  }

  void reserve(const std::string& name) {
    if (name.empty())
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "all_reduce of '': the name is empty, expected a non-empty name");
    rpc::MutexLock lock(mutex_);
    if (has_joined_)
      throw rpc::Error(
          rpc::ErrorKind::failed_precondition,
          "all_reduce of '" + name + "': this rank has joined: wait until all ranks have joined");
    if (!names_.insert(name).second)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "all_reduce of '" + name +
                           "': a reduction of that name is in flight on this rank: "
                           "wait for it, or use another name");
  }

  void complete(PendingReduction pending, rpc::Result<void> result) {
    if (pending.is_zero) return;
    {
      rpc::MutexLock lock(mutex_);
      names_.erase(pending.name);
    }
    if (pending.refusal != nullptr) result = pending.refusal;
    timeline_.add(pending.name, pending.times, pending.bytes, result.ok() ? nullptr : result.error());
    pending.promise.complete(std::move(result));
  }

  void end_join(rpc::Promise<int> promise, rpc::Result<int> result) {
    {
      rpc::MutexLock lock(mutex_);
      has_joined_ = false;
    }
    promise.complete(std::move(result));
  }

  // --- Requests of this rank ---

  // Takes all requests that were made since the last call, so that they share a message.
  void submit() {
    Inbox inbox;
    {
      rpc::MutexLock lock(mutex_);
      inbox = std::exchange(inbox_, {});
    }
    for (auto& [request, pending] : inbox) {
      if (failed_) {
        complete(std::move(pending), std::make_exception_ptr(*failed_));
        continue;
      }
      pending_.emplace(request.name, std::move(pending));
      outbox_.push_back(std::move(request));
    }
    send_requests();
  }

  void send_requests() {
    if (sending_ || closed_ || (outbox_.empty() && !closing_ && !joining_)) return;
    Requests message{std::exchange(outbox_, {}), closing_, std::exchange(joining_, false)};
    closed_ = closing_;
    if (coordinator_ != nullptr) return coordinator_->take(0, std::move(message));
    sending_ = true;
    control_.send_object(message, 0).then([self = shared_from_this()](rpc::Result<void>&& sent) {
      self->post([sent = std::move(sent)](State& state) {
        state.sending_ = false;
        sent.ok() ? state.send_requests() : state.fail(rpc::error_of(sent.error()));
      });
    });
  }

  // --- Plans ---

  void receive_plan() {
    control_.recv_object<Plan>(0, 0, forever).then([self = shared_from_this()](rpc::Result<Plan>&& plan) {
      self->post([plan = std::move(plan)](State& state) mutable {
        if (!plan.ok()) return state.fail(rpc::error_of(plan.error()));
        if (!plan.value().closed) state.receive_plan();
        state.execute(plan.value());
      });
    });
  }

  void execute(const Plan& plan) {
    {
      rpc::MutexLock lock(mutex_);
      fusion_ = {plan.fusion_bytes, std::chrono::nanoseconds(plan.cycle_ns)};
    }
    for (const ReductionLaunch& launch : plan.launches) execute(launch);
    if (!plan.stalled.empty()) stop(plan.stalled);
    if (plan.joined < 0 || !join_) return;
    rpc::Result<int> end = static_cast<int>(plan.joined);
    if (!plan.join_error.empty())
      end = std::make_exception_ptr(rpc::Error(rpc::ErrorKind::failed_precondition, plan.join_error));
    end_join(*std::exchange(join_, std::nullopt), std::move(end));
  }

  void execute(const ReductionLaunch& launch) {
    if (failed_) return;
    std::vector<PendingReduction> reductions;
    const auto taken = rpc::capture([&] {
      for (std::size_t i = 0; i < launch.names.size(); ++i)
        if (auto found = pending_.extract(launch.names[i]); !found.empty())
          reductions.push_back(std::move(found.mapped()));
        else if (!launch.forms.empty())  // this rank has joined
          reductions.push_back(zeros_of(launch.names[i], launch.forms[i], devices_));
    });
    auto run = std::make_shared<ReductionRun>(std::move(reductions));
    if (!launch.error.empty())
      return finish(
          *run, std::make_exception_ptr(rpc::Error(static_cast<rpc::ErrorKind>(launch.kind), launch.error)));
    if (!taken.ok()) return fail_launch(*run, taken);
    if (run->reductions.empty()) return;
    ReductionLane& lane = *lanes_[run->reductions.front().place];
    {
      rpc::MutexLock lock(mutex_);
      ++counts_.launches;
      counts_.names += launch.names.size();
    }
    const std::int64_t planned_at = timeline_.now();
    if (const auto fused = rpc::capture([&] { run->fuse(lane, fusion().bytes); }); !fused.ok())
      return fail_launch(*run, fused);
    for (PendingReduction& each : run->reductions)
      each.times.planned = planned_at, each.times.fused = timeline_.now();
    auto started = rpc::capture([&] { return run->start(lane, launch.rows); });
    if (!started.ok()) return fail_launch(*run, started.error());
    std::move(started).get().then([self = shared_from_this(), run, &lane](rpc::Result<void>&& result) {
      if (result.ok()) result = rpc::capture([&] { run->take_results(lane); });
      if (!result.ok() && !concerns_arguments(rpc::error_of(result.error())))
        return self->post([run, result](State& state) {
          state.fail(rpc::error_of(result.error()));
          state.finish(*run, result);
        });
      if (self->coordinator_ != nullptr) self->count_completed(result.ok() ? run->bytes() : 0);
      self->finish(*run, result);
    });
  }

  // A launch failed on this rank only, for example without memory. The other ranks must not wait for this
  // rank.
  void fail_launch(ReductionRun& run, const rpc::Result<void>& result) {
    const rpc::Error error = rpc::error_of(result.error());
    fail(error);
    abort_launches(error);
    finish(run, result);
  }
  void abort_launches(const rpc::Error& error) const {
    for (const auto& lane : lanes_) lane->group.abort(error.what());
  }

  // Any thread.
  void finish(ReductionRun& run, const rpc::Result<void>& result) {
    for (PendingReduction& each : run.reductions) complete(std::move(each), result);
  }
  void count_completed(std::uint64_t bytes) {
    {
      rpc::MutexLock lock(mutex_);
      completed_bytes_ += bytes;
      if (completed_++ != 0) return;
    }
    post([](State& self) {
      rpc::MutexLock lock(self.mutex_);
      const auto launches = std::exchange(self.completed_, 0);
      const auto bytes = std::exchange(self.completed_bytes_, 0);
      lock.unlock();
      self.coordinator_->completed(launches, bytes);
    });
  }

  // --- Messages of rank 0 ---

  void receive_requests(int from) {
    control_.recv_object<Requests>(from, 0, forever)
        .then([self = shared_from_this(), from](rpc::Result<Requests>&& message) {
          self->post([from, message = std::move(message)](State& state) mutable {
            if (!message.ok()) return state.fail(rpc::error_of(message.error()));
            if (!message.value().closed) state.receive_requests(from);
            state.coordinator_->take(from, std::move(message.value()));
          });
        });
  }

  void send_plan(int to, const Plan& plan) {
    control_.send_object(plan, to).then([self = shared_from_this()](rpc::Result<void>&& sent) {
      if (!sent.ok()) self->post([error = rpc::error_of(sent.error())](State& state) { state.fail(error); });
    });
  }

  // --- Ends ---

  // The first error counts. The control group carries its text to the other ranks.
  void fail(const rpc::Error& error) {
    if (failed_) return;
    fail_pending(error);
    control_.abort(error.what());
    if (error.kind() == rpc::ErrorKind::aborted) abort_launches(error);
  }
  // Called on all ranks, by a plan: the groups end in order, and each rank gets this error.
  void stop(const std::string& stalled) {
    if (failed_) return;
    fail_pending({rpc::ErrorKind::deadline_exceeded, stalled});
    closing_ = true;
    send_requests();
  }
  void fail_pending(const rpc::Error& error) {
    failed_ = error;
    if (coordinator_ != nullptr) coordinator_->stop();
    outbox_.clear();
    for (auto& [name, pending] : std::exchange(pending_, {}))
      complete(std::move(pending), std::make_exception_ptr(error));
    if (join_) end_join(*std::exchange(join_, std::nullopt), std::make_exception_ptr(error));
  }

  const std::shared_ptr<rpc::AgentCore> core_;
  const std::shared_ptr<rpc::Loop> loop_;
  const ReductionTimeline timeline_;
  const std::vector<c10::Device> devices_;
  const Group control_;                                // of messages
  std::vector<std::unique_ptr<ReductionLane>> lanes_;  // by place; each with a group of collectives
  std::shared_ptr<ReductionCoordinator> coordinator_;  // of rank 0; on the loop

  mutable rpc::Mutex mutex_;
  std::set<std::string> names_ WEFT_GUARDED_BY(mutex_);  // in flight
  Inbox inbox_ WEFT_GUARDED_BY(mutex_);                  // not processed by the loop yet
  // Completed launches that the coordinator does not know yet.
  std::uint64_t completed_ WEFT_GUARDED_BY(mutex_) = 0;
  std::uint64_t completed_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
  FusionSettings fusion_ WEFT_GUARDED_BY(mutex_);
  Counts counts_ WEFT_GUARDED_BY(mutex_);
  bool has_joined_ WEFT_GUARDED_BY(mutex_) = false;

  // On the loop.
  std::map<std::string, PendingReduction> pending_;  // requests that are not launched
  std::vector<ReductionRequest> outbox_;
  bool sending_ = false;
  bool closing_ = false, closed_ = false;  // to be sent; sent
  bool joining_ = false;                   // to be sent
  std::optional<rpc::Promise<int>> join_;
  std::optional<rpc::Error> failed_;
};

std::shared_ptr<NegotiatedReduction> NegotiatedReduction::make(rpc::Agent& agent, const Group& group,
                                                               const NegotiationOptions& options) {
  // The other ranks must not wait for a rank that refuses its options.
  const auto checked = rpc::capture([&] { check_options(options); });
  const auto refusals =
      group.all_gather_object(checked.ok() ? std::string() : rpc::error_of(checked.error()).what()).get();
  if (!checked.ok()) std::rethrow_exception(checked.error());
  for (std::size_t rank = 0; rank < refusals.size(); ++rank)
    if (!refusals[rank].empty())
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "NegotiatedReduction: rank " + std::to_string(rank) +
                                                             " has refused its options: " + refusals[rank]);
  const auto state = std::make_shared<State>(agent, group, options);
  state->start(options);
  return std::shared_ptr<NegotiatedReduction>(new NegotiatedReduction(state));
}
std::shared_ptr<NegotiatedReduction> NegotiatedReduction::make(rpc::Agent& agent, const Group& group) {
  return make(agent, group, {});
}

NegotiatedReduction::~NegotiatedReduction() { state_->close(); }

int NegotiatedReduction::rank() const { return state_->rank(); }
int NegotiatedReduction::size() const { return state_->size(); }
Group NegotiatedReduction::split(const std::string& name) const { return state_->split_group(name); }

rpc::Future<void> NegotiatedReduction::all_reduce(const std::string& name, at::Tensor tensor,
                                                  ReductionCall call) {
  return state_->all_reduce(name, {std::move(tensor)}, call);
}
rpc::Future<void> NegotiatedReduction::all_reduce(const std::string& name, std::vector<at::Tensor> tensors,
                                                  ReductionCall call) {
  return state_->all_reduce(name, std::move(tensors), call);
}

rpc::Future<int> NegotiatedReduction::join() { return state_->join(); }

void NegotiatedReduction::abort(const std::string& reason) { state_->abort(reason); }

FusionSettings NegotiatedReduction::fusion() const { return state_->fusion(); }
NegotiatedReduction::Counts NegotiatedReduction::counts() const { return state_->counts(); }

}  // namespace weft::data_parallel
