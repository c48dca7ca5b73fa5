// A worker of the jobs of bench_elastic, started by weft launch: bench_elastic_worker REPORTS WORKERS
//
// WORKERS: the number of workers of the first generation. torch_peer.py has the same model. After SIGUSR1,
// the program hangs at its next step, while its agent answers.
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/elastic/run.h>
#include <weft/rpc/job/run_job.h>

#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <system_error>

using namespace weft;

namespace {

volatile std::sig_atomic_t hangs = 0;

struct Training {
  Training() {
    for (int i = 0; i < 4; ++i) {
      model->push_back(torch::nn::Linear(512, 512));
      model->push_back(torch::nn::ReLU());
    }
    optimizer.emplace(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    state.add("model", model).add("optimizer", *optimizer).add("step", step);
  }

  // report: called after each step.
  template <class Report>
  void train(const collectives::Group& group, Report report) {
    data_parallel::DistributedDataParallel ddp{group, model};
    const at::Tensor batch = at::randn({32, 512});
    while (true) {
      while (hangs != 0) pause();
      optimizer->zero_grad();
      ddp.forward(batch).square().mean().backward();
      optimizer->step();
      ++step;
      report();
      state.commit_every(10);
    }
  }

  torch::nn::Sequential model;
  std::optional<torch::optim::SGD> optimizer;
  std::int64_t step = 0;
  elastic::State state;
};

void report_step(int reports, std::uint64_t generation, const collectives::Group& group, std::int64_t step) {
  const std::string line = std::to_string(generation) + " " + std::to_string(group.rank()) + " " +
                           std::to_string(group.size()) + " " + std::to_string(getpid()) + " " +
                           std::to_string(step) + " " +
                           std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()) + "\n";
  if (write(reports, line.data(), line.size()) < 0)
    throw std::system_error(errno, std::generic_category(), "reports");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::signal(SIGUSR1, [](int) { hangs = 1; });
  const int reports = open(argv[1], O_WRONLY | O_CLOEXEC);
  const auto workers = static_cast<std::size_t>(std::atoi(argv[2]));
  return rpc::run_job(argc, argv, {collectives::layer()}, [&](rpc::Job& job) {
    Training training;
    std::uint64_t generation = 0;
    elastic::run(job, training.state,
                 [&](const collectives::Group& group) {
                   training.train(group, [&] { report_step(reports, generation, group, training.step); });
                 },
                 {.workers = {.min = 3, .start = workers},
                  .on_change = [&](const elastic::Change& change) { generation = change.generation; }});
  });
}
