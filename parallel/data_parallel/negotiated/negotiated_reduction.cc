// Rank r sends Requests to rank 0 as they are made, one message at a time, so that requests made meanwhile
// share the next one. Rank 0 sends each Plan to all ranks. Messages of one sender arrive in order, so all
// ranks start the launches of the plans in one order.
//
// The messages use one group and the collectives another. If a rank leaves, the first group fails, because it
// has a receive in flight at all times; collectives that run in the second group are not affected.
//
// A rank that destroys its reduction sends `closed` to rank 0. When nothing of that rank is left to be
// planned, rank 0 answers with a last plan. The rank then stops to receive, and its state is released.
#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>

#include <weft/parallel/data_parallel/negotiated/reduction_planner.h>
#include <weft/rpc/trace/tracer.h>

#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

namespace weft::data_parallel {

using collectives::Group;
using collectives::ReduceOp;

struct NegotiationRequests {
  std::vector<ReductionRequest> requests;
  bool closed = false;  // the last ones of this rank
};
WEFT_CODEC(NegotiationRequests, requests, closed)

struct NegotiationPlan {
  std::vector<ReductionLaunch> launches;
  bool closed = false;  // the last one for this rank
  std::uint64_t fusion_bytes = 0;
  std::int64_t cycle_ns = 0;
  std::string stalled;  // not empty: everything fails with deadline_exceeded and this text
};
WEFT_CODEC(NegotiationPlan, launches, closed, fusion_bytes, cycle_ns, stalled)

namespace {

using Requests = NegotiationRequests;
using Plan = NegotiationPlan;
constexpr auto forever = std::chrono::nanoseconds::max();

std::string meaning_of(const std::vector<at::Tensor>& tensors, const ReductionCall& call) {
  std::ostringstream text;
  for (const at::Tensor& tensor : tensors) text << tensor.scalar_type() << tensor.sizes() << ", ";
  text << call.op.name();
  if (call.prescale != 1) text << ", prescale " << call.prescale;
  if (call.postscale != 1) text << ", postscale " << call.postscale;
  return text.str();
}

std::string kind_of(const at::Tensor& tensor, const ReductionCall& call) {
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << call.op.name() << ' ' << call.prescale << ' ' << call.postscale;
  return text.str();
}

void check(const std::string& name, const std::vector<at::Tensor>& tensors, const ReductionCall& call) {
  const auto refuse = [&](rpc::ErrorKind kind, const std::string& text) {
    throw rpc::Error(kind, "all_reduce of '" + name + "': " + text);
  };
  using enum rpc::ErrorKind;
  if (name.empty()) refuse(invalid_argument, "the name is empty");
  if (tensors.empty()) refuse(invalid_argument, "no tensors, expected one or more");
  if (call.op.kind == ReduceOp::Kind::premul_sum)
    refuse(invalid_argument, "the operation is premul_sum: use sum with ReductionCall::prescale");
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) refuse(invalid_argument, "an undefined tensor");
    if (tensor.layout() != at::kStrided)
      refuse(invalid_argument, "a sparse tensor, expected a dense one: call to_dense()");
    if (!tensor.is_cpu())
      refuse(unsupported, "a tensor on " + tensor.device().str() + ", expected one on cpu");
    if (tensor.scalar_type() != tensors.front().scalar_type())
      refuse(invalid_argument, std::string("tensors of ") + c10::toString(tensors.front().scalar_type()) +
                                   " and " + c10::toString(tensor.scalar_type()) + ", expected one dtype");
    if ((call.prescale != 1 || call.postscale != 1) && !tensor.is_floating_point() && !tensor.is_complex())
      refuse(invalid_argument, std::string("factors for a tensor of ") + c10::toString(tensor.scalar_type()) +
                                   ", expected floating point");
  }
}

void scale(std::vector<at::Tensor>& tensors, double factor) {
  if (factor == 1) return;
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : tensors) tensor.mul_(factor);
}

rpc::Error error_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    return known;
  } catch (const std::exception& other) {
    return {rpc::ErrorKind::internal, other.what()};
  }
}

// What only the arguments of one collective cause leaves the group usable.
bool concerns_arguments(const rpc::Error& error) {
  return error.kind() == rpc::ErrorKind::invalid_argument || error.kind() == rpc::ErrorKind::unsupported;
}

}  // namespace

// Its functions run on its loop, except those under "Any thread".
class NegotiatedReduction::State : public std::enable_shared_from_this<State> {
 public:
  State(rpc::Agent& agent, const Group& group, NegotiationOptions options)
      : core_(agent.core()),
        loop_(core_->pick_loop()),
        tracer_(rpc::Tracer::of(*core_)),
        options_(std::move(options)),
        control_(split(group, "negotiation", false)),
        data_(split(group, "reduction", true)),
        fusion_(options_.fusion) {
    if (rank() != 0) return;
    planner_.emplace(control_.size());
    if (options_.tuning) {
      tuner_.emplace(*options_.tuning);
      fusion_ = tuner_->settings();
    }
  }

  // --- Any thread ---

  int rank() const { return control_.rank(); }
  int size() const { return control_.size(); }

  void start() {
    if (rank() != 0) return receive_plan();
    for (int from = 1; from < size(); ++from) receive_requests(from);
  }

  rpc::Future<void> all_reduce(const std::string& name, std::vector<at::Tensor> tensors,
                               const ReductionCall& call) {
    Pending pending;
    auto future = pending.promise.future();
    auto request = rpc::capture([&] {
      check(name, tensors, call);
      for (at::Tensor& tensor : tensors) tensor = tensor.detach();
      reserve(name);
      scale(tensors, call.prescale);
      ReductionRequest made{name, meaning_of(tensors, call), kind_of(tensors.front(), call)};
      for (const at::Tensor& tensor : tensors) made.bytes += tensor.nbytes();
      return made;
    });
    if (!request.ok()) {
      pending.promise.fail(request.error());
      return future;
    }
    pending.tensors = std::move(tensors);
    pending.call = call;
    pending.bytes = request.value().bytes;
    if (tracer_ != nullptr) pending.made_at = tracer_->now();
    post([request = std::move(request).get(), pending = std::move(pending)](State& self) mutable {
      self.submit(std::move(request), std::move(pending));
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
      self.closing_ = true;
      self.send_requests();
    });
  }

  FusionSettings fusion() const {
    std::lock_guard lock(mutex_);
    return fusion_;
  }
  Counts counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  struct Pending {
    std::vector<at::Tensor> tensors;
    ReductionCall call;
    rpc::Promise<void> promise;
    std::uint64_t bytes = 0;
    // Of the tracer's clock.
    std::int64_t made_at = 0, planned_at = 0, fused_at = 0;
  };
  // Several tensors of one dtype as one, in memory of the group, which collectives do not copy.
  struct FusionBuffer {
    at::Tensor memory, flat;  // bytes; the elements of all tensors
    std::vector<at::Tensor> tensors, parts;

    void copy_in(at::Tensor bytes, std::vector<at::Tensor> all, std::uint64_t size) {
      memory = std::move(bytes);
      flat = memory.narrow(0, 0, static_cast<std::int64_t>(size)).view(all.front().scalar_type());
      std::int64_t begin = 0;
      for (const at::Tensor& tensor : all) {
        parts.push_back(flat.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
        parts.back().copy_(tensor);
        begin += tensor.numel();
      }
      tensors = std::move(all);
    }
    void copy_out() {
      for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].copy_(parts[i]);
    }
  };
  struct Launched {
    std::vector<std::string> names;
    std::vector<Pending> parts;
    FusionBuffer fused;  // of several tensors
  };

  static Group split(const Group& group, const char* name, bool shared_memory) {
    collectives::GroupOptions options = group.options();
    options.name = group.name() + "/" + name;
    options.shared_memory = options.shared_memory && shared_memory;
    return group.split(0, group.rank(), options).get().value();
  }

  template <class F>
  void post(F f) {
    loop_->post([self = shared_from_this(), f = std::move(f)]() mutable { f(*self); });
  }

  void reserve(const std::string& name) {
    std::lock_guard lock(mutex_);
    if (!names_.insert(name).second)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "all_reduce of '" + name +
                           "': a reduction of that name is in flight on this rank: "
                           "wait for it, or use another name");
  }

  void complete(const std::string& name, Pending pending, rpc::Result<void> result) {
    {
      std::lock_guard lock(mutex_);
      names_.erase(name);
    }
    trace(name, pending, result.ok() ? nullptr : result.error());
    pending.promise.complete(std::move(result));
  }

  // --- Requests of this rank ---

  void submit(ReductionRequest request, Pending pending) {
    if (failed_) return complete(request.name, std::move(pending), std::make_exception_ptr(*failed_));
    pending_.emplace(request.name, std::move(pending));
    outbox_.push_back(std::move(request));
    send_requests();
  }

  void send_requests() {
    if (sending_ || closed_ || (outbox_.empty() && !closing_)) return;
    Requests message{std::exchange(outbox_, {}), closing_};
    closed_ = closing_;
    if (rank() == 0) return take_requests(0, std::move(message));
    sending_ = true;
    control_.send_object(message, 0).then([self = shared_from_this()](rpc::Result<void>&& sent) {
      self->post([sent = std::move(sent)](State& state) {
        state.sending_ = false;
        sent.ok() ? state.send_requests() : state.fail(error_of(sent.error()));
      });
    });
  }

  // --- Plans ---

  void receive_plan() {
    control_.recv_object<Plan>(0, 0, forever).then([self = shared_from_this()](rpc::Result<Plan>&& plan) {
      self->post([plan = std::move(plan)](State& state) mutable {
        if (!plan.ok()) return state.fail(error_of(plan.error()));
        if (!plan.value().closed) state.receive_plan();
        state.execute(plan.value());
        if (!plan.value().stalled.empty()) state.stop(plan.value().stalled);
      });
    });
  }

  void execute(const Plan& plan) {
    {
      std::lock_guard lock(mutex_);
      fusion_ = {plan.fusion_bytes, std::chrono::nanoseconds(plan.cycle_ns)};
    }
    for (const ReductionLaunch& launch : plan.launches) execute(launch);
  }

  void execute(const ReductionLaunch& launch) {
    auto launched = std::make_shared<Launched>();
    std::vector<at::Tensor> tensors;
    for (const std::string& name : launch.names) {
      auto found = pending_.extract(name);
      if (found.empty()) continue;  // failed here meanwhile; or an error that only concerns others
      launched->names.push_back(name);
      launched->parts.push_back(std::move(found.mapped()));
      const auto& own = launched->parts.back().tensors;
      tensors.insert(tensors.end(), own.begin(), own.end());
    }
    if (launched->parts.empty()) return;
    if (!launch.error.empty())
      return finish(*launched, std::make_exception_ptr(
                                   rpc::Error(static_cast<rpc::ErrorKind>(launch.kind), launch.error)));
    {
      std::lock_guard lock(mutex_);
      ++counts_.launches;
      counts_.names += launch.names.size();
    }
    const std::int64_t planned_at = now();
    if (tensors.size() > 1) {
      const auto fused = rpc::capture([&] { fuse(launched->fused, tensors); });
      if (!fused.ok()) {  // no memory: the other ranks must not wait for this one
        fail(error_of(fused.error()));
        data_.abort(error_of(fused.error()).what());
        return finish(*launched, fused);
      }
    }
    for (Pending& part : launched->parts) part.planned_at = planned_at, part.fused_at = now();
    data_
        .all_reduce(launched->fused.flat.defined() ? launched->fused.flat : tensors.front(),
                    launched->parts.front().call.op)
        .then([self = shared_from_this(), launched](rpc::Result<void>&& result) {
          if (result.ok()) {
            const at::NoGradGuard no_grad;
            launched->fused.copy_out();
            for (Pending& part : launched->parts) scale(part.tensors, part.call.postscale);
          }
          self->post([launched, result = std::move(result)](State& state) {
            if (!result.ok() && !concerns_arguments(error_of(result.error())))
              state.fail(error_of(result.error()));
            // Memory of a collective that failed is not used again.
            if (result.ok() && launched->fused.memory.defined())
              state.free_.push_back(std::move(launched->fused.memory));
            state.finish(*launched, result);
          });
        });
  }

  void fuse(FusionBuffer& buffer, std::vector<at::Tensor> tensors) {
    const at::NoGradGuard no_grad;
    std::uint64_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
    const auto fits = std::find_if(free_.begin(), free_.end(),
                                   [&](const at::Tensor& memory) { return memory.nbytes() >= bytes; });
    at::Tensor memory;
    if (fits != free_.end()) {
      memory = std::move(*fits);
      free_.erase(fits);
    } else {
      const auto size = std::max(bytes, fusion_.bytes);
      memory = data_.empty({static_cast<std::int64_t>(size)}, at::TensorOptions(at::kByte));
    }
    buffer.copy_in(std::move(memory), std::move(tensors), bytes);
  }

  void finish(Launched& launched, const rpc::Result<void>& result) {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < launched.parts.size(); ++i) {
      bytes += launched.parts[i].bytes;
      complete(launched.names[i], std::move(launched.parts[i]), result);
    }
    if (tuner_ && result.ok()) tune(bytes);
  }

  // --- Rank 0 ---

  void receive_requests(int from) {
    control_.recv_object<Requests>(from, 0, forever)
        .then([self = shared_from_this(), from](rpc::Result<Requests>&& message) {
          self->post([from, message = std::move(message)](State& state) mutable {
            if (!message.ok()) return state.fail(error_of(message.error()));
            if (!message.value().closed) state.receive_requests(from);
            state.take_requests(from, std::move(message.value()));
          });
        });
  }

  void take_requests(int from, Requests message) {
    if (failed_) return;
    for (ReductionRequest& request : message.requests) planner_->add(from, std::move(request), loop_->now());
    if (message.closed) planner_->close(from);
    watch_stalls();
    if (!planner_->has_ready()) return end_closed_ranks();
    if (planner_->ready_bytes() >= fusion_.bytes || fusion_.cycle.count() == 0) return send_plan();
    if (std::exchange(planning_, true)) return;
    after(fusion_.cycle, [](State& self) {
      self.planning_ = false;
      if (!self.failed_) self.send_plan();
    });
  }

  void send_plan() {
    const Plan plan{planner_->plan(fusion_.bytes), false, fusion_.bytes, fusion_.cycle.count(), {}};
    if (plan.launches.empty()) return;
    for (int to = 1; to < size(); ++to)
      if (!ended_.contains(to)) send_plan(to, plan);
    execute(plan);
    end_closed_ranks();
  }

  void send_plan(int to, const Plan& plan) {
    control_.send_object(plan, to).then([self = shared_from_this()](rpc::Result<void>&& sent) {
      if (!sent.ok()) self->post([error = error_of(sent.error())](State& state) { state.fail(error); });
    });
  }

  // To ranks that are closed, once nothing of theirs is left to be planned. If rank 0 is closed itself, no
  // rank has anything left.
  void end_closed_ranks() {
    for (int to = 1; to < size(); ++to)
      if (planner_->is_closed(to) && !planner_->has_requests_of(to) && ended_.insert(to).second)
        send_plan(to, last_plan());
  }

  Plan last_plan() const { return {{}, true, fusion_.bytes, fusion_.cycle.count(), {}}; }

  template <class F>
  void after(std::chrono::nanoseconds wait, F f) {
    loop_->schedule(rpc::later(loop_->now(), wait), [weak = weak_from_this(), f]() {
      if (const auto self = weak.lock()) f(*self);
    });
  }

  // Keeps one timer while some request waits for ranks.
  void watch_stalls() {
    const auto oldest = planner_->oldest();
    const bool warns = options_.stall_warning.count() > 0, fails = options_.stall_limit.count() > 0;
    if (watching_ || !oldest || (!warns && !fails)) return;
    // A warning is repeated each time that the oldest request has waited for `stall_warning` more.
    const auto now = loop_->now();
    auto next = ReductionPlanner::Time::max();
    if (warns)
      next = rpc::later(*oldest, options_.stall_warning * ((now - *oldest) / options_.stall_warning + 1));
    if (fails) next = std::min(next, rpc::later(*oldest, options_.stall_limit));
    watching_ = true;
    after(next - now, [](State& self) {
      self.watching_ = false;
      if (!self.failed_) self.look_at_stalls();
    });
  }

  void look_at_stalls() {
    const auto now = loop_->now();
    const auto overdue = [&](std::chrono::nanoseconds limit) {
      std::vector<std::string> texts;
      if (limit.count() == 0) return texts;
      for (const auto& stall : planner_->stalled(now, limit))
        texts.push_back("all_reduce of '" + stall.name + "' has waited for " +
                        std::to_string(std::chrono::duration<double>(limit).count()) + " s: " + stall.text());
      return texts;
    };
    if (const auto texts = overdue(options_.stall_limit); !texts.empty()) {
      Plan plan = last_plan();
      plan.stalled = texts.front();
      for (int to = 1; to < size(); ++to)
        if (ended_.insert(to).second) send_plan(to, plan);
      return stop(plan.stalled);
    }
    for (const std::string& text : overdue(options_.stall_warning)) core_->log(rpc::LogLevel::warning, text);
    watch_stalls();
  }

  // The first launch that completes after the end of a window closes it.
  void tune(std::uint64_t bytes) {
    const auto now = loop_->now();
    if (!window_began_) {
      window_began_ = now;
      return;
    }
    window_bytes_ += bytes;
    if (now - *window_began_ < options_.tuning_window) return;
    tuner_->add(std::exchange(window_bytes_, 0), std::chrono::duration<double>(now - *window_began_).count());
    window_began_ = now;
    {
      std::lock_guard lock(mutex_);
      fusion_ = tuner_->settings();
    }
    if (!tuner_->done()) return;
    core_->log(rpc::LogLevel::info,
               "fusion tuned to " + std::to_string(fusion_.bytes) + " bytes and a cycle of " +
                   std::to_string(fusion_.cycle.count() / 1000) + " us\n" + tuner_->csv());
    tuner_.reset();
  }

  // --- Ends ---

  // The first error counts. The control group carries its text to the other ranks.
  void fail(const rpc::Error& error) {
    if (failed_) return;
    fail_pending(error);
    control_.abort(error.what());
    if (error.kind() == rpc::ErrorKind::aborted) data_.abort(error.what());
  }
  // The same on all ranks, by a plan: the groups end in order, and each rank gets this error.
  void stop(const std::string& stalled) {
    if (failed_) return;
    fail_pending({rpc::ErrorKind::deadline_exceeded, stalled});
    closing_ = true;
    send_requests();
  }
  void fail_pending(const rpc::Error& error) {
    failed_ = error;
    outbox_.clear();
    for (auto& [name, pending] : std::exchange(pending_, {}))
      complete(name, std::move(pending), std::make_exception_ptr(error));
  }

  // --- Timeline ---

  std::int64_t now() const { return tracer_ == nullptr ? 0 : tracer_->now(); }

  void trace(const std::string& name, const Pending& pending, const std::exception_ptr& error) {
    if (tracer_ == nullptr) return;
    const rpc::TraceContext root = tracer_->span_under(std::nullopt);
    if (!root.sampled) return;
    const std::int64_t end = now();
    const auto add = [&](const rpc::TraceContext& context, std::string text, std::int64_t begin,
                         std::int64_t until, std::map<std::string, std::string> notes) {
      rpc::Span span{.trace_high = root.trace_high, .trace_low = root.trace_low, .id = context.span};
      span.parent = context.span == root.span ? 0 : root.span;
      span.name = std::move(text);
      span.begin = begin;
      span.end = until;
      span.error = rpc::span_error(error);
      span.work = true;
      span.notes = std::move(notes);
      tracer_->add(std::move(span));
    };
    const bool launched = pending.planned_at != 0;
    add(root, "all_reduce " + name, pending.made_at, end, {{"bytes", std::to_string(pending.bytes)}});
    add(tracer_->span_under(root), "NEGOTIATE", pending.made_at, launched ? pending.planned_at : end, {});
    if (!launched) return;
    add(tracer_->span_under(root), "FUSE", pending.planned_at, pending.fused_at, {});
    add(tracer_->span_under(root), "ALLREDUCE", pending.fused_at, end, {});
  }

  const std::shared_ptr<rpc::AgentCore> core_;
  const std::shared_ptr<rpc::Loop> loop_;
  const std::shared_ptr<rpc::Tracer> tracer_;  // may be null
  const NegotiationOptions options_;
  const Group control_, data_;  // of messages; of collectives

  mutable std::mutex mutex_;     // guards what follows; the loop alone writes fusion_ and counts_
  std::set<std::string> names_;  // in flight
  FusionSettings fusion_;
  Counts counts_;

  // On the loop.
  std::map<std::string, Pending> pending_;  // requests that are not launched
  std::vector<ReductionRequest> outbox_;
  std::vector<at::Tensor> free_;  // memory of earlier fused launches
  bool sending_ = false;
  bool closing_ = false, closed_ = false;  // to be said; said
  std::optional<rpc::Error> failed_;

  // On the loop of rank 0.
  std::optional<ReductionPlanner> planner_;
  bool planning_ = false, watching_ = false;  // a timer is set
  std::set<int> ended_;                       // ranks that get no further plan
  std::optional<FusionTuner> tuner_;
  std::optional<rpc::Clock::time_point> window_began_;
  std::uint64_t window_bytes_ = 0;
};

std::shared_ptr<NegotiatedReduction> NegotiatedReduction::make(rpc::Agent& agent, const Group& group,
                                                               NegotiationOptions options) {
  if (options.tuning) (void)FusionTuner(*options.tuning);  // refused on all ranks, before the groups are made
  auto state = std::make_shared<State>(agent, group, std::move(options));
  state->start();
  return std::shared_ptr<NegotiatedReduction>(new NegotiatedReduction(std::move(state)));
}
std::shared_ptr<NegotiatedReduction> NegotiatedReduction::make(rpc::Agent& agent, const Group& group) {
  return make(agent, group, {});
}

NegotiatedReduction::~NegotiatedReduction() { state_->close(); }

int NegotiatedReduction::rank() const { return state_->rank(); }
int NegotiatedReduction::size() const { return state_->size(); }

rpc::Future<void> NegotiatedReduction::all_reduce(const std::string& name, at::Tensor tensor,
                                                  ReductionCall call) {
  return state_->all_reduce(name, {std::move(tensor)}, call);
}
rpc::Future<void> NegotiatedReduction::all_reduce(const std::string& name, std::vector<at::Tensor> tensors,
                                                  ReductionCall call) {
  return state_->all_reduce(name, std::move(tensors), call);
}

void NegotiatedReduction::abort(const std::string& reason) { state_->abort(reason); }

FusionSettings NegotiatedReduction::fusion() const { return state_->fusion(); }
NegotiatedReduction::Counts NegotiatedReduction::counts() const { return state_->counts(); }

}  // namespace weft::data_parallel
