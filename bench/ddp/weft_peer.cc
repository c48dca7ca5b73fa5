// weft's DistributedDataParallel, the same ranks without communication, and only the all-reduces of the
// buckets.
#include "bench/ddp/models.h"
#include "bench/ddp/weft_rank.h"
#include "bench/harness/statistics.h"

#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/data_parallel/internal/overlap_trial.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace weft::bench {
namespace {

using collectives::Group;
enum class Way { ddp, group, after, local, all_reduce };

// Returns a function that all-reduces the buckets that a DistributedDataParallel of this module has after its
// first backward.
std::function<void()> all_reduces(const Group& group, const torch::nn::Module& module) {
  std::vector<data_parallel::ParameterSpec> specs;
  for (const at::Tensor& parameter : module.parameters())
    specs.push_back({parameter.nbytes(), parameter.scalar_type(), parameter.device()});
  std::vector<at::Tensor> buckets;
  const auto caps = data_parallel::Options{}.bucket_bytes;
  for (const auto& bucket : data_parallel::split_last_bucket(
           data_parallel::plan_buckets(specs, caps, data_parallel::reverse_order(specs.size())), specs,
           caps.front())) {
    std::size_t bytes = 0;
    for (const std::size_t index : bucket) bytes += specs[index].bytes;
    buckets.push_back(group
                          .empty({static_cast<std::int64_t>(bytes / sizeof(float))},
                                 at::TensorOptions(specs[bucket.front()].device))
                          .zero_());
  }
  return [group, buckets] {
    std::vector<rpc::Future<void>> in_flight;
    for (const at::Tensor& bucket : buckets)
      in_flight.push_back(group.all_reduce(bucket, collectives::ReduceOp::avg));
    for (auto& each : in_flight) each.get();
  };
}

void run(const Work& work, Way way, const std::string& store, RankEnd& end) {
  const c10::Device device = work.gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  as_rank(work, store, end, [&](const Group& group) {
    with_model(work, end.rank(), [&](auto module, auto input, auto loss) {
      module->to(device);
      input = input.to(device);
      std::optional<data_parallel::DistributedDataParallel<typename decltype(module)::element_type>> ddp;
      if (way <= Way::after) {
        constexpr data_parallel::Overlap overlaps[] = {
            data_parallel::Overlap::automatic, data_parallel::Overlap::group, data_parallel::Overlap::after};
        ddp.emplace(group, module,
                    data_parallel::Options{.overlap = overlaps[static_cast<std::size_t>(way)]});
      }
      std::vector<double> waited;
      const auto step = [&] {
        module->zero_grad(!work.keep_grad);
        loss(ddp ? ddp->forward(input) : module->forward(input)).backward();
        if (work.gpu) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
        if (ddp) waited.push_back(std::chrono::duration<double, std::micro>(ddp->last().waited).count());
      };
      // The iterations in which Overlap::automatic tries both modes are not measured.
      if (way == Way::ddp)
        for (std::size_t i = 0;
             i < data_parallel::OverlapTrial::warm_up + 2 * data_parallel::OverlapTrial::rounds; ++i)
          step();
      waited.clear();
      measure(end, group, way == Way::all_reduce ? all_reduces(group, *module) : step, [&](Figures& figures) {
        if (waited.empty()) return;
        figures["waited_us"] = median(waited);
      });
    });
  });
}

std::optional<Contender> contender(const char* name, const Work& work, Way way) {
  if (work.task != Task::gradients) return std::nullopt;
  return rank_contender(name, work,
                        [work, way](const std::string& store, RankEnd& end) { run(work, way, store, end); });
}

}  // namespace

std::optional<Contender> weft_peer(const Work& work) { return contender("weft", work, Way::ddp); }
std::optional<Contender> weft_group_peer(const Work& work) {
  return contender("weft-group", work, Way::group);
}
std::optional<Contender> weft_after_peer(const Work& work) {
  return contender("weft-after", work, Way::after);
}
std::optional<Contender> local_peer(const Work& work) { return contender("local", work, Way::local); }
std::optional<Contender> all_reduce_peer(const Work& work) {
  if (work.model == Model::embedding) return std::nullopt;  // its gradients are gathered
  return contender("all_reduce", work, Way::all_reduce);
}

}  // namespace weft::bench
