// One agent learns to balance a pole from N observers, each with its own simulated cart. The agent has an
// RRef to each observer and requests an episode from it. The request has an RRef to the policy of the agent.
// The observer calls this policy at each step. After each round of episodes, the policy learns from all
// episodes of the round.
//
// Without a launcher the program starts the agent and the observers on this machine. Under weft launch,
// torchrun, mpirun or srun the program is one of these processes. Runs with the same seed give the same
// results.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_optim/layers.h>
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>
#include <weft/rref/rref.h>

#include <CLI/CLI.hpp>
#include <numeric>

#include "reinforcement_learning/cart_pole.h"
#include "reinforcement_learning/policy.h"

using namespace weft;

namespace {

struct Settings {
  std::int64_t observers = 4, rounds = 150, max_steps = 500;  // max_steps: the limit of an episode
  std::int64_t seed = 1;
};

class Observer {
 public:
  Observer(std::int64_t number, std::int64_t seed)
      : number_(number), world_(static_cast<std::uint64_t>(seed)) {}

  // The rewards of the steps.
  rpc::Task<std::vector<double>> episode(rref::RRef<Policy> policy, std::int64_t max_steps) {
    std::vector<double> rewards;
    world_.reset();
    while (!world_.over() && static_cast<std::int64_t>(rewards.size()) < max_steps) {
      const bool right = co_await policy.call<&Policy::goes_right>(number_, world_.state());
      rewards.push_back(world_.step(right));
    }
    co_return rewards;
  }

  using Service = rpc::Service<"observer", rpc::Constructor<std::int64_t, std::int64_t>,
                               rpc::Method<"episode", &Observer::episode>>;

 private:
  std::int64_t number_;
  CartPole world_;
};

double mean_reward(const std::vector<std::vector<double>>& episodes) {
  double sum = 0;
  for (const auto& rewards : episodes) sum += std::accumulate(rewards.begin(), rewards.end(), 0.0);
  return sum / static_cast<double>(episodes.size());
}

rpc::Task<void> learn(rpc::Agent& agent, Settings settings) {
  auto policy = std::make_shared<Policy>(settings.observers, settings.seed);
  auto handle = rref::local(agent, policy);
  std::vector<rref::RRef<Observer>> observers;
  for (std::int64_t i = 0; i < settings.observers; ++i)
    observers.push_back(
        rref::create<Observer>(agent.peer("worker" + std::to_string(i + 1)), i, settings.seed + 1000 + i));

  for (std::int64_t round = 0; round < settings.rounds; ++round) {
    std::vector<rpc::Future<std::vector<double>>> in_flight;
    for (auto& observer : observers)
      in_flight.push_back(observer.call<&Observer::episode>(handle, settings.max_steps));
    const auto episodes = co_await rpc::when_all(std::move(in_flight));
    policy->learn(episodes);
    fmt::print("round={} reward={:.1f}\n", round, mean_reward(episodes));
  }
}

void run(rpc::Job& job, const Settings& settings) {
  job.agent().allow_create<Observer>();
  job.join().get();
  if (job.rank() == 0) job.agent().run(learn(job.agent(), settings));
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{"One agent learns CartPole from several observers."};
  app.add_option("--observers", settings.observers)->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--rounds", settings.rounds, "of one episode of each observer")->capture_default_str();
  app.add_option("--max-steps", settings.max_steps, "of an episode")->capture_default_str();
  app.add_option("--seed", settings.seed)->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  at::set_num_threads(1);
  const auto processes = static_cast<std::size_t>(settings.observers) + 1;
  return rpc::run_job(argc, argv, dist_optim::layers(), [&](rpc::Job& job) { run(job, settings); },
                      {.processes = processes});
}
