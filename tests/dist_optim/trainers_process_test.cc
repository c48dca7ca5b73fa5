// A parameter server whose trainers are killed and replaced: during a forward, a backward or a step. The
// other trainers continue. Each step has changed all modules of the server or none, and the server keeps no
// state of the dead trainers.
#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/job/job.h>
#include <weft/rref/rref.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <deque>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "tests/support/child.h"
#include "tests/support/job.h"

namespace weft::dist_optim {
namespace trainers_process_test {

constexpr std::size_t victims = 6, trainers_at_once = 3;
constexpr int steps_to_learn = 150;

// A linear map, and a number that each step of a trainer increases by one.
struct Half : torch::nn::Module {
  Half() {
    weight = register_parameter("weight", at::zeros({4, 2}, at::kDouble));
    count = register_parameter("count", at::zeros({}, at::kDouble));
  }
  std::vector<at::Tensor> forward(at::Tensor x) { return {x.mm(weight), count * 1}; }
  at::Tensor weight, count;
  using Service = rpc::Service<"test.half", rpc::Constructor<>, rpc::Method<"forward", &Half::forward>>;
};
OptimizerSpec spec() {
  return OptimizerSpec(torch::optim::SGDOptions(0.05)).with_group("count", {{"lr", 1}});
}

struct Control {
  bool is_over() { return over; }
  std::atomic<bool> over = false;
  using Service = rpc::Service<"test.control", rpc::Method<"is_over", &Control::is_over>>;
};

rpc::MemberOptions options_of(const test::JobStore& store, const std::string& name) {
  rpc::MemberOptions options{{.name = name, .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 2}};
  options.log = [](const rpc::LogRecord&) {};
  options.rendezvous = {.store = store.url, .rank = rpc::Rendezvous::no_rank, .fixed_world = false};
  return options;
}

// Polls the remaining state for 10 s until none is left. If the server does not detect the end of a process
// at once, it does so only after Heartbeat::timeout, 30 s.
std::string left_at_last(const std::function<std::string()>& what) {
  for (int i = 0; i < 1000 && !what().empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  return what();
}

// Runs until "stop". Then it prints the remaining state of the trainers after all of them have left.
void serve(const test::JobStore& store, int pipe, int orders) {
  rpc::Job job(options_of(store, "server"), layers());
  rpc::Agent& agent = job.agent();
  agent.allow_create<Half>();
  const auto control = std::make_shared<Control>();
  agent.serve(control);
  job.wait_for(1).get();
  test::say(pipe, "serves");
  test::line_of(orders);
  control->over = true;
  test::line_of(orders);
  test::say(pipe, "left: " + left_at_last([&] {
                    std::string left;
                    for (const auto& [name, value] : rpc::stats(agent).layers)
                      if (value != 0) left += name + "=" + std::to_string(value) + " ";
                    return left;
                  }));
}

// The operation of a step that is in flight when a trainer dies.
struct Death {
  int step;
  enum Phase { forward, backward, step_of_optimizer } phase;
  std::chrono::microseconds after;
};
Death death_of(std::size_t victim) {
  std::mt19937 draw(static_cast<std::uint32_t>(victim) + 1);
  return {.step = static_cast<int>(draw() % 5),
          .phase = static_cast<Death::Phase>(victim % 3),
          .after = std::chrono::microseconds(draw() % 1000)};
}
void die_after(std::chrono::microseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < end) {
  }
  ::kill(::getpid(), SIGKILL);
}

class Trainer {
 public:
  Trainer(rpc::Agent& agent, StepMode mode, std::uint64_t seed)
      : agent_(agent), draw_(at::detail::createCPUGenerator(seed)), server_(agent.peer("server")) {
    a = rref::create<Half>(server_, rref::Named{"a"});
    b = rref::create<Half>(server_, rref::Named{"b"});
    optimizer.emplace(agent, spec(), mode, a, b);
  }
  at::Tensor loss(dist_autograd::Pass& pass, const std::function<void()>& calls_are_made) {
    const at::Tensor x = at::randn({8, 4}, draw_, at::kDouble);
    auto left = a.call<&Half::forward>(pass, x), right = b.call<&Half::forward>(pass, x);
    calls_are_made();
    const auto l = left.get(), r = right.get();
    return at::mse_loss(l[0] + r[0], x.narrow(1, 0, 2) * 2 - 1 * x.narrow(1, 2, 2)) - l[1] - r[1];
  }
  void step(std::optional<Death> death) {
    const auto at = [&](Death::Phase phase) {
      if (death && death->phase == phase) die_after(death->after);
    };
    dist_autograd::Pass pass(agent_);
    const at::Tensor whole = loss(pass, [&] { at(Death::forward); });
    auto backward = pass.backward(whole);
    at(Death::backward);
    backward.get();
    auto stepped = optimizer->step(pass);
    at(Death::step_of_optimizer);
    stepped.get();
  }
  bool is_over() { return server_.call<&Control::is_over>().get(); }

  rref::RRef<Half> a, b;
  std::optional<DistributedOptimizer> optimizer;

 private:
  rpc::Agent& agent_;
  at::Generator draw_;
  const rpc::Peer server_;
};

// Prints "stepped" after each step, and "failed" with the error of a failed step, which it repeats.
void train(const test::JobStore& store, StepMode mode, std::size_t number, std::optional<Death> death,
           int pipe, int orders) {
  at::set_num_threads(1);
  rpc::Job job(options_of(store, "trainer" + std::to_string(number)), layers());
  rpc::Agent& agent = job.agent();
  job.wait_for(2).get();
  Trainer trainer(agent, mode, number);
  for (int step = 0; !trainer.is_over();) {
    try {
      trainer.step(death && death->step == step ? death : std::nullopt);
      ++step;
      test::say(pipe, "stepped");
    } catch (const rpc::Error& error) {
      std::ostringstream text;
      text << "failed " << to_string(error.kind()) << " " << error.what();
      test::say(pipe, text.str());
    }
  }
  trainer.optimizer.reset();  // the other trainers' rounds do not wait for it
  test::say(pipe, "over");
  if (number != 0) {
    job.leave().get();
    return test::say(pipe, "left");
  }
  test::line_of(orders);  // the other trainers have left
  trainer.optimizer.emplace(agent, spec(), mode, trainer.a, trainer.b);
  test::say(pipe, "left: " + left_at_last([&] {
                    std::string left;
                    for (const OwnerStats& owned : trainer.optimizer->stats().get())
                      if (owned.open_passes + owned.waiting_passes != 0 || owned.live_versions != 1)
                        left += std::to_string(owned.open_passes) + " open, " +
                                std::to_string(owned.waiting_passes) + " waiting, " +
                                std::to_string(owned.live_versions) + " versions; ";
                    return left;
                  }));
  dist_autograd::Pass pass(agent);
  const auto l = trainer.a.call<&Half::forward>(pass, at::eye(4, at::kDouble)).get(),
             r = trainer.b.call<&Half::forward>(pass, at::eye(4, at::kDouble)).get();
  const at::Tensor learnt = l[0] + r[0],
                   goal = at::cat({at::eye(2, at::kDouble) * 2, -at::eye(2, at::kDouble)});
  std::ostringstream result;
  result << l[1].item<double>() << ' ' << r[1].item<double>() << ' '
         << (learnt - goal).abs().max().item<double>();
  pass.release();
  trainer.optimizer.reset();
  trainer.a = trainer.b = {};
  job.leave().get();
  test::say(pipe, result.str());
}

class Trainers : public ::testing::TestWithParam<StepMode> {
 protected:
  void start(std::optional<Death> death) {
    const std::size_t number = children.size();
    children.emplace_back([&, number, death](int pipe, int orders) {
      ::alarm(60);  // a stalled training fails the test
      try {
        train(store, GetParam(), number, death, pipe, orders);
      } catch (const std::exception& error) {
        test::say(pipe, std::string("broken: ") + error.what());
      }
    });
  }
  // Reads the output of a trainer up to that line, and counts its steps.
  void read(std::size_t trainer, const std::string& until) {
    for (std::string line = children[trainer].line(); line != until; line = children[trainer].line()) {
      steps += line == "stepped" ? 1 : 0;
      EXPECT_TRUE(!line.starts_with("failed ") || line.starts_with("failed aborted")) << line;
      if (line.empty() || line.starts_with("broken")) {
        ADD_FAILURE() << "trainer " << trainer << " ends with: " << line;
        return;
      }
    }
  }

  test::FileJobStore store;
  std::deque<test::Child> children;  // the trainers
  double steps = 0;
};
std::string name_of(const ::testing::TestParamInfo<StepMode>& info) {
  const std::string text = to_string(info.param);
  return text.substr(0, text.find('('));
}
INSTANTIATE_TEST_SUITE_P(Modes, Trainers,
                         ::testing::Values(StepMode(synchronous), bounded_staleness(1), hogwild), name_of);

TEST_P(Trainers, MayDieAndJoinWhileTheOthersTrain) {
  test::Child server([&](int pipe, int orders) {
    ::alarm(60);
    serve(store, pipe, orders);
  });
  ASSERT_EQ(server.line(), "serves");
  start(std::nullopt);
  for (std::size_t victim = 0; victim + 1 < trainers_at_once; ++victim) start(death_of(victim));
  for (std::size_t victim = 0; victim < victims; ++victim) {
    read(victim + 1, "");  // it dies
    children[victim + 1].kill();
    const std::size_t next = victim + trainers_at_once - 1;
    start(next < victims ? std::optional(death_of(next)) : std::nullopt);
  }
  while (steps < steps_to_learn) {
    const std::string line = children.back().line();
    ASSERT_TRUE(line.starts_with("stepped") || line.starts_with("failed aborted")) << line;
    steps += line == "stepped" ? 1 : 0;
  }
  server.tell("stop");
  for (std::size_t trainer = victims + 1; trainer < children.size(); ++trainer) read(trainer, "left");
  read(0, "over");
  children[0].tell("report");
  EXPECT_EQ(children[0].line(), "left: ");
  std::istringstream result(children[0].line());
  double a = 0, b = 0, error = 1;
  result >> a >> b >> error;
  EXPECT_EQ(a, b) << "a step has changed one module and not the other";
  EXPECT_GE(a, steps);
  EXPECT_LE(a, steps + victims);  // the server may have applied a step of a dead trainer
  EXPECT_LT(error, 1e-3);
  server.tell("report");
  EXPECT_EQ(server.line(), "left: ");
}

}  // namespace trainers_process_test
}  // namespace weft::dist_optim
