// Passes over agents of a simulated world, whose network and processes fail in many ways. Invariants: every
// step of a program completes. After a step that succeeds, every worker has the gradients of the same
// computation in one process. A step fails only if a fault occurred. When the world is quiescent, no pass and
// no tensor of a pass exists.
#pragma once

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/pass.h>
#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/testing/simulation/sim_agent.h>

#include <torch/torch.h>

#include <set>

#include "tests/dist_autograd/failing_backward.h"
#include "tests/rpc/simulation/agents_sim_faults.h"
#include "tests/support/sim_job.h"

namespace weft::dist_autograd::sim {

using namespace std::chrono_literals;
using weft::test::Fault;
using weft::test::Plant;
using weft::test::SimCrash;
using weft::test::SimProcess;
using weft::test::SimRandom;
using weft::test::SimWorld;

// --- Computations of a pass ---

enum class Trouble : std::uint8_t { none, forward, backward };  // an intended failure
using weft::test::Troubles;

// Runs on a worker, and on the workers that it calls.
struct Plan {
  std::string worker;
  std::vector<Plan> below;
  bool used = true;  // the loss depends on its result
  Trouble trouble = Trouble::none;
};
WEFT_CODEC(Plan, worker, below, used, trouble)

inline at::Tensor weights_of(const std::string& worker) {
  const auto n = static_cast<double>(worker.back() - '0');
  return torch::tensor({0.3 * n, -0.2, 0.1 * n, 0.5}, at::kDouble).reshape({2, 2});
}

// Runs the same computation in one process.
inline at::Tensor value_of(const Plan& plan, const at::Tensor& x,
                           std::map<std::string, at::Tensor>& weights) {
  const at::Tensor here = x.mm(weights.at(plan.worker)).tanh();
  at::Tensor sum = here;
  for (const Plan& next : plan.below)
    if (next.used) sum = sum + 0.5 * value_of(next, here, weights);
  return sum;
}

inline std::string text_of(const Plan& plan) {
  std::string text = plan.worker + (plan.used ? "" : "?") + (plan.trouble == Trouble::none ? "" : "!");
  for (const Plan& next : plan.below) text += " (" + text_of(next) + ")";
  return text;
}

template <class Predicate>
bool any_of(const Plan& plan, const Predicate& holds) {
  return holds(plan) || std::any_of(plan.below.begin(), plan.below.end(),
                                    [&](const Plan& next) { return any_of(next, holds); });
}

// Tensors that must be freed when the world is quiescent.
using Tensors = std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>;
inline void watch(Tensors& tensors, const at::Tensor& tensor) {
  tensors.emplace_back(tensor.getIntrusivePtr());
}

// The part of one worker: its weights, and a function that calls further workers.
class Relay {
 public:
  Relay(rpc::Agent& agent, const std::string& worker, bool resets_only)
      : agent_(&agent), resets_only_(resets_only), weights_(weights_of(worker).set_requires_grad(true)) {}

  rpc::Task<at::Tensor> run(rpc::CallContext& call, Plan plan, at::Tensor x) {
    if (plan.trouble == Trouble::forward) throw std::runtime_error("forward failed on purpose");
    const at::Tensor here = x.mm(weights_).tanh();
    watch(tensors_, here);
    std::vector<rpc::Future<at::Tensor>> values;
    for (const Plan& next : plan.below) {
      const rpc::Peer peer = co_await weft::test::reach(agent_, next.worker, resets_only_);
      values.push_back(peer.with(call).call<&Relay::run>(next, here));
    }
    at::Tensor sum = here;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const at::Tensor value = co_await std::move(values[i]);
      if (plan.below[i].used) sum = sum + 0.5 * value;
    }
    co_return plan.trouble == Trouble::backward ? test::FailingBackward::apply(sum) : sum;
  }
  // Returns the gradient of this agent's weights in a pass, or a tensor without elements if the pass has
  // none.
  at::Tensor gradient(rpc::CallContext& call, PassId pass) {
    const at::Tensor found = AutogradLayer::of(*call.host())->find(pass)->gradient(weights_);
    return found.defined() ? found : torch::zeros({0}, at::kDouble);
  }
  using Service =
      rpc::Service<"sim.relay", rpc::Method<"run", &Relay::run>, rpc::Method<"gradient", &Relay::gradient>>;

  const Tensors& tensors() const { return tensors_; }

 private:
  rpc::Agent* agent_;
  const bool resets_only_;
  at::Tensor weights_;
  Tensors tensors_;
};

// --- Programs ---

// An intended fault: a worker ignores the end of a pass.
struct Forgetful final : rpc::Interceptor {
  rpc::Task<void> accept(rpc::CallContext& call) override {
    if (call.method() == "weft.autograd.release")
      throw rpc::Error(rpc::ErrorKind::internal, "a release that is forgotten on purpose");
    co_return;
  }
};

// A forward, its backward, and their results.
struct Step {
  Plan plan;
  BackwardMode mode = BackwardMode::smart;
  bool defer_weights = false;
  std::optional<Pass> pass;  // during the backward
  PassId id;
  bool left = false;  // released before its end
  bool ended = false;
  std::exception_ptr error;
  std::map<std::string, at::Tensor> gradients;  // of the input ("") and of each worker's weights
};

class Program {
 public:
  // `names` are the names of the agents of the job, which know each other's addresses.
  Program(SimProcess& process, const rpc::AgentOptions& options, const std::vector<std::string>& names,
          Plant& plant, bool resets_only = false)
      : process_(process), resets_only_(resets_only) {
    agent_ = &weft::test::start_planted_agent(process, options, plant, layers());
    for (const std::string& name : names) agent_->core()->routes().to_name(name, {"sim://" + name});
    relay_ = std::make_shared<Relay>(*agent_, process.name(), resets_only);
    agent_->serve(relay_);
  }

  SimProcess& process() const { return process_; }
  rpc::Agent& agent() const { return *agent_; }
  bool runs() const { return process_.alive(); }
  const std::vector<std::shared_ptr<Step>>& steps() const { return steps_; }
  std::size_t live_passes() const { return AutogradLayer::of(*agent_->core())->live_passes(); }
  std::size_t live_tensors() const {
    std::size_t live = 0;
    for (const Tensors* all : {&inputs_, &relay_->tensors()})
      for (const auto& tensor : *all) live += tensor.expired() ? 0 : 1;
    return live;
  }

  void begin(std::shared_ptr<Step> step) {
    steps_.push_back(step);
    run(step.get()).start(agent_->core()->handlers()).then([this, step](rpc::Result<void>&& result) {
      if (!result.ok()) step->error = result.error();
      note("has ended " + to_string(step->id) +
           (result.ok() ? "" : ": " + weft::test::text_of(result.error())));
      step->pass.reset();
      step->ended = true;
    });
  }
  void leave(Step& step) {
    if (!step.pass || step.left) return;
    step.left = true;
    note("leaves " + to_string(step.id));
    agent_->core()->handlers().post(
        [pass = step.pass->state()] { pass->layer().release(pass->id(), nullptr); });
  }

  bool knows(const PassId& pass) const {
    return AutogradLayer::of(*agent_->core())->find_if_known(pass) != nullptr;
  }

 private:
  void note(const std::string& what) {
    process_.world().trace().note(process_.world().now(), process_.name() + " " + what);
  }
  rpc::Task<void> run(Step* step) {
    step->pass.emplace(*agent_);
    step->id = step->pass->id();
    note("begins " + to_string(step->id) + ": " + text_of(step->plan) +
         (step->mode == BackwardMode::fast ? ", fast" : "") + (step->defer_weights ? ", deferred" : ""));
    const at::Tensor x =
        torch::tensor({0.4, -0.1, 0.2, 0.7}, at::kDouble).reshape({2, 2}).set_requires_grad(true);
    watch(inputs_, x);
    const rpc::Peer first = co_await weft::test::reach(agent_, step->plan.worker, resets_only_);
    const at::Tensor value = co_await first.call<&Relay::run>(*step->pass, step->plan, x);
    BackwardOptions how;
    how.mode = step->mode;
    how.defer_weights = step->defer_weights;
    co_await step->pass->backward(value.sum(), how);
    std::map<std::string, at::Tensor> gradients{{"", step->pass->gradient(x).clone()}};
    std::set<std::string> workers;
    (void)any_of(step->plan, [&](const Plan& plan) {
      workers.insert(plan.worker);
      return false;
    });
    for (const std::string& worker : workers) {
      const rpc::Peer peer = co_await weft::test::reach(agent_, worker, resets_only_);
      gradients[worker] = co_await peer.call<&Relay::gradient>(step->pass->id());
    }
    step->gradients = std::move(gradients);
  }

  SimProcess& process_;
  const bool resets_only_;
  rpc::Agent* agent_;
  std::shared_ptr<Relay> relay_;
  std::vector<std::shared_ptr<Step>> steps_;
  Tensors inputs_;
};

// --- The world ---

class Simulation {
 public:
  // With an intended fault, the simulation must find a violation.
  Simulation(SimWorld& world, weft::test::SimTally& tally, Fault fault = Fault::none, bool forgetful = false,
             Troubles troubles = Troubles::any)
      : world_(world),
        random_(world.random()),
        tally_(tally),
        plant_(world.keep(std::make_shared<Plant>(fault, world.order().next()))),
        resets_only_(troubles == Troubles::resets),
        troubled_(fault == Fault::none && !forgetful && !resets_only_ && random_.chance(800)),
        fate_(weft::test::SimFate::noticed(troubled_ && random_.coin())),
        job_(world, tally, fate_, [this](SimProcess& process) {
          return std::make_shared<Program>(process, options_, job_.names(), plant_, resets_only_);
        }) {
    if (troubled_ || resets_only_) world.network().weather() = weft::test::SimWeather::draw(random_);
    if (resets_only_) world.network().weather().refusals = 0;
    world.pace().stalls = random_.coin() ? 0 : random_.spread(1, 20);
    options_.heartbeat = fate_.heartbeat();
    if (forgetful) options_.interceptors.push_back(std::make_shared<Forgetful>());
    job_.start();
  }

  void run() {
    for (std::uint64_t steps = random_.between(3, 16); steps != 0; --steps) {
      if (Program* program = job_.anybody()) begin_step(*program);
      if (troubled_ && random_.chance(200)) job_.fault();
      if (resets_only_ && random_.chance(400) && world_.network().reset_any()) ++tally_["reset"];
      world_.run_for(std::chrono::microseconds(random_.spread(1, 20'000)));
    }
    job_.calm();
    job_.rest("when all is calm");
    for (const Program* program : job_.running()) look_at(*program);
  }

 private:
  Plan draw(int depth) {
    Plan plan;
    plan.worker = random_.pick(job_.names());
    plan.used = !random_.chance(150);
    if (random_.chance(20)) plan.trouble = random_.coin() ? Trouble::forward : Trouble::backward;
    if (depth > 0)
      for (std::uint64_t n = random_.below(3); n != 0; --n) plan.below.push_back(draw(depth - 1));
    return plan;
  }
  void begin_step(Program& program) {
    auto step = std::make_shared<Step>();
    step->plan = draw(3);
    step->plan.used = true;
    if (random_.chance(300)) step->mode = BackwardMode::fast;
    step->defer_weights = random_.chance(300);
    program.begin(step);
    if (random_.chance(100))
      world_.after(random_.up_to(20ms), [&program, step] {
        if (program.runs()) program.leave(*step);
      });
  }

  // --- Invariants ---

  void look_at(const Program& program) {
    const std::string& name = program.process().name();
    for (const auto& step : program.steps()) look_at(name, *step);
    for (const auto& [from, other] : job_.programs())
      for (const auto& step : other->steps())
        if (program.knows(step->id))
          world_.violation(name + " is idle in " + to_string(step->id) + " of " + from);
    job_.expect_none(program, "passes", program.live_passes());
    job_.expect_none(program, "tensors of passes that are over", program.live_tensors());
    job_.expect_none(program, "calls that it serves", program.agent().counts().serving);
    job_.expect_none(program, "calls that it waits for", program.agent().counts().waiting);
  }

  void look_at(const std::string& name, const Step& step) {
    if (!step.ended) return world_.violation("a step of " + name + " did not end");
    const bool spoilt =
        any_of(step.plan, [](const Plan& plan) { return plan.trouble == Trouble::forward; }) ||
        on_used_way(step.plan, [](const Plan& plan) { return plan.trouble == Trouble::backward; }) ||
        // Fast mode waits for all messages. If a message is unused, the backward cannot succeed.
        (step.mode == BackwardMode::fast && any_of(step.plan, [](const Plan& plan) { return !plan.used; }));
    if (step.error != nullptr) {
      ++tally_["failed"];
      if (!spoilt && !step.left && !troubled_)
        world_.violation("a step of " + name +
                         " failed where nothing was wrong: " + weft::test::text_of(step.error));
      return;
    }
    if (spoilt) return world_.violation("a step of " + name + " ended well, though a part of it failed");
    ++tally_[step.mode == BackwardMode::fast ? "fast" : "smart"];
    if (step.defer_weights) ++tally_["deferred"];
    check_gradients(name, step);
  }

  template <class Predicate>
  static bool on_used_way(const Plan& plan, const Predicate& holds) {
    return holds(plan) || std::any_of(plan.below.begin(), plan.below.end(), [&](const Plan& next) {
             return next.used && on_used_way(next, holds);
           });
  }

  void check_gradients(const std::string& name, const Step& step) {
    std::map<std::string, at::Tensor> weights;
    for (const std::string& worker : job_.names())
      weights[worker] = weights_of(worker).set_requires_grad(true);
    at::Tensor x = torch::tensor({0.4, -0.1, 0.2, 0.7}, at::kDouble).reshape({2, 2}).set_requires_grad(true);
    value_of(step.plan, x, weights).sum().backward();
    for (const auto& [worker, got] : step.gradients) {
      const at::Tensor want = worker.empty() ? x.grad() : weights.at(worker).grad();
      const bool right = want.defined()
                             ? got.sizes() == want.sizes() && torch::allclose(got, want, 1e-12, 1e-14)
                             : got.numel() == 0;
      if (!right)
        world_.violation("a gradient of " + name + "'s step is not what it is in one place: of " +
                         (worker.empty() ? "its input" : worker));
    }
  }

  SimWorld& world_;
  SimRandom& random_;
  weft::test::SimTally& tally_;
  Plant& plant_;
  const bool resets_only_;
  const bool troubled_;  // the network and the processes fail
  const weft::test::SimFate fate_;
  rpc::AgentOptions options_;
  weft::test::SimJob<Program> job_;
};

}  // namespace weft::dist_autograd::sim
