// A worker of the jobs of bench_elastic, started by weft launch: bench_elastic_worker REPORTS WORKERS KIND
//
// WORKERS: the number of workers of the first generation. torch_peer.py has the same model. KIND: JobOptions.
// After SIGUSR1, the program hangs at its next step, while its agent answers.
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
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>

using namespace weft;

namespace {

volatile std::sig_atomic_t hangs = 0;

struct Ballast : torch::nn::Module {
  Ballast() { register_parameter("ballast", at::ones({1 << 28})); }  // 1 GiB
};

struct Training {
  explicit Training(const std::string& kind) : later(kind == "later") {
    for (int i = 0; i < 4; ++i) {
      model->push_back(torch::nn::Linear(512, 512));
      model->push_back(torch::nn::ReLU());
    }
    optimizer.emplace(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    state.add("model", model).add("optimizer", *optimizer).add("step", step);
    if (!later && kind != "large") return;
    sampler.emplace(std::size_t{1} << 20, elastic::SamplerOptions{.shuffle = false});
    ballast = std::make_shared<Ballast>();
    state.add("sampler", *sampler).add("ballast", ballast);
  }

  // report: called after each step.
  template <class Report>
  void train(const collectives::Group& group, Report report) {
    data_parallel::DistributedDataParallel ddp{group, model, {.init_sync = !later}};
    const at::Tensor batch = at::randn({32, 512});
    while (true) {
      while (hangs != 0) pause();
      const double weight = sampler ? next_weight() : 1;
      optimizer->zero_grad();
      (ddp.forward(batch).square().mean() * weight).backward();
      const auto apply = [&] {
        optimizer->step();
        ++step;
        if (sampler) sampler->record();
        report();
      };
      if (sampler) {
        state.step(apply);
      } else {
        apply();
        state.commit_every(10);
      }
    }
  }
  double next_weight() {
    while (!sampler->next(1)) sampler->set_epoch(sampler->epoch() + 1);
    sampler->deliver();
    return sampler->round().weight;
  }

  const bool later;
  torch::nn::Sequential model;
  std::optional<torch::optim::SGD> optimizer;
  std::int64_t step = 0;
  std::optional<elastic::ElasticSampler> sampler;  // with it, each step is a transaction
  std::shared_ptr<Ballast> ballast;
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
  if (argc != 4) return 2;
  std::signal(SIGUSR1, [](int) { hangs = 1; });
  const int reports = open(argv[1], O_WRONLY | O_CLOEXEC);
  const auto workers = static_cast<std::size_t>(std::atoi(argv[2]));
  const std::string kind = argv[3];
  const bool hosts = kind == "hosts";
  const auto train = [&](rpc::Job& job) {
    Training training(kind);
    std::uint64_t generation = 0;
    elastic::RunOptions options{
        .workers = {.min = 3, .start = workers},
        .sync_later = training.later,
        .on_change = [&](const elastic::Change& change) { generation = change.generation; }};
    if (hosts) options.group.host = std::filesystem::read_symlink("/proc/self/ns/net").string();
    elastic::run(
        job, training.state,
        [&](const collectives::Group& group) {
          training.train(group, [&] { report_step(reports, generation, group, training.step); });
        },
        options);
  };
  return rpc::run_job(argc, argv, {collectives::layer()}, train, {.adjust = [&](rpc::MemberOptions& options) {
                        if (hosts) options.same_host = false;
                      }});
}
