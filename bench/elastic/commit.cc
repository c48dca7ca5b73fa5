// Measures the cost of State::commit() for two ranks that train together, and the cost of copying the same
// number of bytes once.
#include "bench/collectives/ranks.h"
#include "bench/elastic/work.h"

#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/elastic/run.h>

#include <torch/torch.h>

#include <cstring>

namespace weft::bench {
namespace {

constexpr int ranks = 2;

struct Trained {
  explicit Trained(const Size& size) : batch(at::randn({32, size.width})) {
    for (int i = 0; i < size.layers; ++i) {
      model->push_back(torch::nn::Linear(size.width, size.width));
      model->push_back(torch::nn::ReLU());
    }
    optimizer.emplace(model->parameters());
  }
  void step(data_parallel::DistributedDataParallel<torch::nn::SequentialImpl>& ddp) {
    optimizer->zero_grad();
    ddp.forward(batch).square().mean().backward();
    optimizer->step();
  }
  std::size_t bytes() const {  // Adam keeps two tensors for each parameter
    std::size_t bytes = 0;
    for (const at::Tensor& parameter : model->parameters()) bytes += 3 * parameter.nbytes();
    return bytes;
  }

  at::Tensor batch;
  torch::nn::Sequential model;
  std::optional<torch::optim::Adam> optimizer;
};

// All ranks call f at the same time, until rank 0 has measured enough.
Figures measure(const Budget& budget, const collectives::Group& group, const std::function<void()>& f) {
  LatencyMeter meter(budget);
  for (bool more = true; more;) {
    group.barrier().get();
    meter.begin();
    f();
    more = group.broadcast_object(meter.end(), 0).get();
  }
  return meter.figures();
}

void run_rank(const std::string& store, RankEnd& end,
              const std::function<void(rpc::Job&, const elastic::RunOptions&)>& f) {
  at::set_num_threads(1);
  rpc::MemberOptions options = member_options(end, store, ranks);
  options.rendezvous.fixed_world = false;
  rpc::Job job(options, group_layers());
  f(job, {.workers = {.min = ranks}});
  job.leave().get();
}

Contender contender(const char* peer, const Size& size,
                    Figures (*measure)(const Budget&, const collectives::Group&, Trained&, elastic::State&)) {
  return {peer, {}, [=](const Setting& setting) {
            return measure_members(ranks, setting, [&](const std::string& store, RankEnd& end) {
              run_rank(store, end, [&](rpc::Job& job, const elastic::RunOptions& options) {
                Trained trained(size);
                elastic::State state;
                state.add("model", trained.model).add("optimizer", *trained.optimizer);
                elastic::run(
                    job, state,
                    [&](const collectives::Group& group) {
                      const Figures figures = measure(end.budget(), group, trained, state);
                      if (group.rank() == 0) end.report(figures);
                    },
                    options);
              });
            });
          }};
}

}  // namespace

// The share of time of commit_every(50) is computed from the medians of a commit and of a step.
Contender commit_contender(const Size& size) {
  return contender(
      "weft", size,
      [](const Budget& budget, const collectives::Group& group, Trained& trained, elastic::State& state) {
        data_parallel::DistributedDataParallel ddp{group, trained.model};
        const double step = measure(budget, group, [&] { trained.step(ddp); }).at("p50_us");
        Figures figures = measure(budget, group, [&] { state.commit(); });
        const double commit = figures.at("p50_us");
        figures["percent_of_50_steps"] = 100 * commit / (50 * step + commit);
        return figures;
      });
}

Contender memcpy_contender(const Size& size) {
  return contender(
      "memcpy", size,
      [](const Budget& budget, const collectives::Group& group, Trained& trained, elastic::State&) {
        const auto bytes = static_cast<std::int64_t>(trained.bytes());
        const at::Tensor from = at::ones({bytes}, at::kByte), to = at::zeros({bytes}, at::kByte);
        return measure(budget, group, [&] {
          std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), static_cast<std::size_t>(bytes));
        });
      });
}

}  // namespace weft::bench
