#include "parameter_server/server.h"

#include <fmt/format.h>

#include <chrono>

#include "fashion_mnist/loss_curve.h"
#include "parameter_server/model.h"
#include "parameter_server/pull_push_mode.h"

using namespace weft;

void serve(rpc::Job& job, const Settings& settings) {
  job.agent().allow_create<Shared>();  // trainers may create a Shared on this agent
  job.agent().allow_create<ParameterServer>();
  auto scoreboard = std::make_shared<Scoreboard>();
  job.agent().serve(scoreboard);
  job.join().get();

  const auto start = std::chrono::steady_clock::now();
  job.serve_until_shutdown();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;

  write_loss_curve(scoreboard->points(), "Fashion-MNIST: training loss of each trainer", settings.out);
  fmt::print("the loss curve is in {0}/loss.svg and {0}/loss.csv\n", settings.out);
  fmt::print("test_accuracy={:.4f} seconds={:.1f} images_per_second={:.0f}\n", scoreboard->test_accuracy(),
             taken.count(), scoreboard->images_per_second());
}
