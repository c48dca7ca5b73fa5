// weft's DistributedDataParallel; the same ranks without it; and the all-reduces of its buckets alone.
#include "bench/ddp/models.h"
#include "bench/ddp/work.h"

#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/rpc/membership/job.h>
#include <weft/rpc/tensor/layers.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <stdexcept>

namespace weft::bench {
namespace {

using collectives::Group;
enum class Way { ddp, group, after, local, all_reduce };

// waited: microseconds of each step of a DistributedDataParallel after backward, until its buckets were
// reduced.
void measure(RankEnd& end, const Group& group, const std::function<void()>& step,
             std::vector<double>& waited) {
  at::Tensor count = at::zeros({1}, at::kLong);
  Rounds rounds(end);
  rounds.run(step, [&](std::size_t next) {
    count.fill_(static_cast<std::int64_t>(next));
    group.broadcast(count, 0).get();
    return static_cast<std::size_t>(count.item<std::int64_t>());
  });
  if (end.rank() != 0) return;
  Figures figures = rounds.figures();
  figures["steps_per_s"] = 1e6 / figures.at("p50_us");
  if (!waited.empty()) {
    const auto middle = waited.begin() + static_cast<std::ptrdiff_t>(waited.size() / 2);
    std::nth_element(waited.begin(), middle, waited.end());
    figures["waited_us"] = *middle;
  }
  end.report(figures);
}

// Of the buckets of a DistributedDataParallel of this module, as it has them after its first backward.
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
  at::set_num_threads(1);
  const c10::Device device = work.gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  if (work.gpu) {
    share_gpu(end.rank());
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
  }
  rpc::AgentOptions options{.name = "rank" + std::to_string(end.rank())};
  const bool hosts = !work.rate.empty();
  options.listen = {"tcp://" + (hosts ? Hosts::address(end.rank()) : "127.0.0.1") + ":0"};
  options.insecure = hosts;
  options.same_host = !work.tcp && !hosts;
  options.rendezvous = rpc::Rendezvous{.store = "file://" + store,
                                       .rank = static_cast<std::size_t>(end.rank()),
                                       .world_size = static_cast<std::size_t>(work.ranks)};
  rpc::Layers layers = tensor::layers();
  layers.push_back(collectives::layer());
  rpc::Agent agent(options, layers);
  rpc::Job(agent).join().get();
  collectives::GroupOptions how{.shared_memory = !work.tcp};
  if (hosts) how.host = "host" + std::to_string(end.rank());
  const Group group = Group::create(agent, how).get();
  with_model(work, end.rank(), [&](auto module, auto input, auto loss) {
    module->to(device);
    input = input.to(device);
    std::optional<data_parallel::DistributedDataParallel<typename decltype(module)::element_type>> ddp;
    if (way <= Way::after) {
      constexpr data_parallel::Overlap overlaps[] = {
          data_parallel::Overlap::automatic, data_parallel::Overlap::group, data_parallel::Overlap::after};
      ddp.emplace(group, module, data_parallel::Options{.overlap = overlaps[static_cast<std::size_t>(way)]});
    }
    std::vector<double> waited;
    const auto step = [&] {
      module->zero_grad(!work.keep_grad);
      loss(ddp ? ddp->forward(input) : module->forward(input)).backward();
      if (work.gpu) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
      if (ddp) waited.push_back(std::chrono::duration<double, std::micro>(ddp->last().waited).count());
    };
    measure(end, group, way == Way::all_reduce ? all_reduces(group, *module) : step, waited);
  });
  agent.leave().get();  // else the others learn that this rank is lost
}

Contender contender(const char* name, const Work& work, Way way) {
  return Contender{name, {{"caller", "main"}}, [work, way](const Setting& setting) {
                     const std::string store = scratch_path(".store");
                     const auto hosts = work.make_hosts();
                     const Outcome outcome = measure_ranks(work.ranks, setting, [&](RankEnd& end) {
                       if (hosts) hosts->enter(end.rank());
                       run(work, way, store, end);
                     });
                     std::filesystem::remove(store);
                     return outcome;
                   }};
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
