// Trains on real images with a parameter server and several trainers, each a process: ./dev demo runs it.
//
// autograd_mode.cc has the training loop, server.cc the server, and pull_push_mode.cc the classical
// alternative.
#include <torch/torch.h>
#include <weft/dist_optim/layers.h>
#include <weft/rpc/job/run_job.h>

#include "parameter_server/server.h"
#include "parameter_server/settings.h"
#include "parameter_server/trainer.h"

using namespace weft;

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  at::set_num_threads(settings.threads);
  const auto run = [&](rpc::Job& job) {
    torch::manual_seed(settings.seed + job.rank());
    job.rank() == 0 ? serve(job, settings) : train(job, settings);
  };
  const auto name = [](rpc::MemberOptions& options) {
    const std::size_t rank = options.rendezvous.rank;
    options.name = rank == 0 ? "server" : "trainer" + std::to_string(rank);
  };
  const auto processes = static_cast<std::size_t>(settings.trainers) + 1;
  return rpc::run_job(argc, argv, dist_optim::layers(), run, {.processes = processes, .adjust = name});
}
