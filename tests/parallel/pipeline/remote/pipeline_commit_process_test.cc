// The workers of a pipeline in separate processes. One is killed in the middle of a step, and another one
// replaces it. The stages draw random numbers, which equal those of an undisturbed run.
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/parallel/pipeline/remote/pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/rpc/job/job.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <optional>

#include "tests/support/child.h"
#include "tests/support/job.h"

namespace weft::pipeline::pipeline_commit_process_test {
namespace {

constexpr int steps = 7, microbatches = 4, commit_interval = 3;
constexpr int fatal_forward = 4 * microbatches + 1;  // the victim's second forward of step 4

struct Noise : torch::nn::Module {
  explicit Noise(std::function<void()> on) : on_forward(std::move(on)) {}
  at::Tensor forward(const at::Tensor& x) {
    on_forward();
    return torch::dropout(x.tanh(), 0.3, is_training());
  }
  std::function<void()> on_forward;
};

Model model_of(const std::function<void()>& on_forward) {
  const auto layers = [on_forward] {
    LayerGraph all;
    for (const char* stage : {"a", "b"}) {
      all.add(std::string("linear_") + stage, [] {
        torch::nn::Linear linear(6, 6);
        linear->to(at::kDouble);
        return linear;
      });
      all.add(std::string("noise_") + stage, [on_forward] { return std::make_shared<Noise>(on_forward); });
    }
    return all;
  };
  return {.layers = layers, .loss = loss_of([](const at::Tensor& y, const at::Tensor& target) {
                              return torch::mse_loss(y, target);
                            })};
}

rpc::MemberOptions options_of(const test::JobStore& store, const std::string& name) {
  rpc::MemberOptions options{{.name = name, .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 2}};
  options.log = [](const rpc::LogRecord&) {};
  options.rendezvous = {.store = store.url, .rank = rpc::Rendezvous::no_rank, .fixed_world = false};
  return options;
}

std::string text_of(double number) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

// Prints "loss STEP LOSS" for each step, also for repeated ones, and "lost RANK".
void drive(rpc::Agent& agent, int pipe) {
  const std::vector<rpc::Peer> workers{agent.peer("anna"), agent.peer("bert")};
  PipelineOptions options{.cuts = {2}, .seed = 1};
  options.schedule = schedule::one_forward_one_backward({.ranks = 2, .microbatches = microbatches});
  Pipeline pipeline = Pipeline::create(agent, workers, options).get();
  std::optional<dist_optim::DistributedOptimizer> optimizer;
  const auto attach = [&] {
    optimizer.emplace(agent, torch::optim::SGDOptions(0.1).momentum(0.9), dist_optim::synchronous,
                      pipeline.modules());
  };
  attach();
  PipelineCommit commit;
  int committed = 0;
  for (int number = 0; number < steps; ++number) {
    try {
      if (number % commit_interval == 0) {
        commit = pipeline.commit().get();
        committed = number;
      }
      const auto draw = at::detail::createCPUGenerator(static_cast<std::uint64_t>(number));
      const at::Tensor x = at::randn({8, 6}, draw, at::kDouble), y = at::randn({8, 6}, draw, at::kDouble);
      const PipelineStep step = pipeline.step(x, y).get();
      optimizer->step(step.pass).get();
      test::say(pipe, "loss " + std::to_string(number) + " " + text_of(step.loss.item<double>()));
    } catch (const rpc::Error&) {
      std::map<int, rpc::Peer> replaced;
      for (const int rank : pipeline.lost().get()) {
        test::say(pipe, "lost " + std::to_string(rank));
        replaced.emplace(rank, agent.peer("spare"));
      }
      pipeline.restore(commit, replaced).get();
      attach();
      number = committed - 1;
    }
  }
  test::say(pipe, "trained");
}

// Returns the losses of the steps. For repeated steps, the last one. victim: the rank of the killed worker.
std::vector<std::string> losses_of_run(std::optional<std::size_t> victim) {
  test::FileJobStore store;
  std::deque<test::Child> children;
  for (const std::string name : {"anna", "bert", "spare", "driver"}) {
    const bool is_victim = children.size() == victim;
    const std::size_t number = children.size();
    children.emplace_back([&store, name, number, is_victim](int pipe) {
      try {
        torch::manual_seed(number);
        std::atomic<int> forwards = 0;
        const auto on_forward = [&] {
          if (!is_victim || forwards++ != fatal_forward) return;
          test::say(pipe, "kill me");
          while (true) ::pause();
        };
        rpc::Job job(options_of(store, name), layers(model_of(on_forward)));
        job.wait_for(4).get();
        if (name == "driver") drive(job.agent(), pipe);
        while (true) ::pause();
      } catch (const std::exception& error) {
        test::say(pipe, std::string("failed: ") + error.what());
      }
    });
  }
  if (victim) {
    EXPECT_EQ(children[*victim].line(), "kill me");
    children[*victim].kill();
  }
  std::vector<std::string> losses(steps), lost;
  std::string line = children.back().line();
  for (; line.starts_with("loss ") || line.starts_with("lost "); line = children.back().line())
    line.starts_with("lost ") ? lost.push_back(line) : void(losses.at(std::stoul(line.substr(5))) = line);
  EXPECT_EQ(line, "trained");
  EXPECT_EQ(lost, victim ? std::vector{"lost " + std::to_string(*victim)} : std::vector<std::string>{});
  return losses;
}

TEST(PipelineProcesses, AKilledWorkerIsReplacedAndTheStepsAreThoseOfAnUndisturbedRun) {
  const std::vector<std::string> expected = losses_of_run(std::nullopt);
  for (const std::size_t victim : {0U, 1U}) {
    SCOPED_TRACE("rank " + std::to_string(victim) + " is killed");
    EXPECT_EQ(losses_of_run(victim), expected);
  }
}

}  // namespace
}  // namespace weft::pipeline::pipeline_commit_process_test
