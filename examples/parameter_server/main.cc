// Trains on real images with a parameter server and several trainers, each a process: ./dev demo runs it.
//
// Read on in autograd_mode.cc, which holds the training loop; server.cc is the other end; pull_push_mode.cc
// is the classical alternative.
#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/dist_optim/layers.h>
#include <weft/rpc/rpc.h>

#include "parameter_server/server.h"
#include "parameter_server/settings.h"
#include "parameter_server/trainer.h"
#include "support/launcher.h"

using namespace weft;

namespace {

std::string name_of(std::size_t rank) { return rank == 0 ? "server" : "trainer" + std::to_string(rank); }

// One process of the job; where the others are it reads in the environment, as torchrun, Slurm or our
// launcher set it.
int run_role(const Settings& settings) {
  std::string name = "parameter_server";
  try {
    rpc::AgentOptions options = rpc::from_environment();
    const std::size_t rank = options.rendezvous->rank;
    name = options.name = name_of(rank);
    at::set_num_threads(settings.threads);
    torch::manual_seed(settings.seed + rank);

    rpc::Agent agent{options, dist_optim::layers()};
    rank == 0 ? serve(agent, settings) : train(agent, settings);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  if (settings.is_role) return run_role(settings);

  examples::Launch job;
  for (int rank = 0; rank <= settings.trainers; ++rank) job.names.push_back(name_of(rank));
  job.arguments.assign(argv + 1, argv + argc);
  return examples::launch(job);
}
