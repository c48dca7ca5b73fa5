// weft's FullyShardedDataParallel and ShardedOptimizer, and the same steps without sharding.
#include "bench/ddp/models.h"
#include "bench/ddp/weft_rank.h"

#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/sharded_optimizer.h>

#include <optional>

namespace weft::bench {
namespace {

enum class Sharding { none, zero1, zero2, zero3 };

// The figures of memory are those of one rank's training state, as weft counts it: parameters, gradients,
// AdamW's state and buffers.
double mebibytes(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
std::size_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::size_t bytes = 0;
  for (const at::Tensor& each : tensors) bytes += each.nbytes();
  return bytes;
}

void run_sharded(const Work& work, Sharding sharding, const std::string& store, RankEnd& end) {
  as_rank(work, store, end, [&](const collectives::Group& group) {
    torch::manual_seed(static_cast<std::uint64_t>(1 + end.rank()));
    const auto model = std::make_shared<Transformer>();
    const std::size_t parameters = bytes_of(model->parameters());
    const at::Tensor input = at::randn({4, 64, Transformer::width});
    const torch::optim::AdamWOptions options;
    if (sharding == Sharding::zero2 || sharding == Sharding::zero3) {
      sharded::FullyShardedDataParallel fsdp{
          group, model, {.block = "layers.*", .reshard_after_forward = sharding == Sharding::zero3}};
      torch::optim::AdamW optimizer(fsdp.parameters(), options);
      return measure(
          end, group,
          [&] {
            optimizer.zero_grad(!work.keep_grad);
            fsdp.forward(input).square().mean().backward();
            optimizer.step();
          },
          [&](Figures& figures) {
            figures["MiB"] = mebibytes(fsdp.bytes() + 2 * bytes_of(fsdp.parameters()));
            // (parameters + gradients + state) / ranks, two blocks' parameters and two blocks' gradients
            figures["MiB_target"] = mebibytes(4 * parameters / static_cast<std::size_t>(work.ranks) +
                                              4 * parameters / Transformer::blocks);
          });
    }
    data_parallel::DistributedDataParallel ddp{group, model};
    std::optional<sharded::ShardedOptimizer> sharded;
    std::optional<torch::optim::AdamW> whole;
    if (sharding == Sharding::zero1) {
      sharded.emplace(ddp, options);
    } else {
      whole.emplace(model->parameters(), options);
    }
    measure(
        end, group,
        [&] {
          model->zero_grad(!work.keep_grad);
          ddp.forward(input).square().mean().backward();
          sharded ? sharded->step() : (void)whole->step();
        },
        [&](Figures& figures) {
          const auto states = 2 * parameters / (sharded ? static_cast<std::size_t>(work.ranks) : 1);
          figures["MiB"] = mebibytes(2 * parameters + states);
        });
  });
}

std::optional<Contender> sharded_contender(const char* name, const Work& work, Sharding sharding) {
  return rank_contender(name, work, [work, sharding](const std::string& store, RankEnd& end) {
    run_sharded(work, sharding, store, end);
  });
}

}  // namespace

std::optional<Contender> weft_sharded_peer(const Work& work) {
  if (!work.sharded()) return std::nullopt;
  return sharded_contender("weft", work, work.task == Task::fsdp ? Sharding::zero3 : Sharding::zero1);
}
std::optional<Contender> weft_zero2_peer(const Work& work) {
  if (work.task != Task::fsdp) return std::nullopt;
  return sharded_contender("weft-zero2", work, Sharding::zero2);
}
std::optional<Contender> weft_whole_peer(const Work& work) {
  if (!work.sharded()) return std::nullopt;
  return sharded_contender("weft-ddp", work, Sharding::none);
}

}  // namespace weft::bench
