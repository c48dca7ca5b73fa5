#include "bench/ddp/weft_rank.h"

#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/tensor/layers.h>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <dlfcn.h>

#include <filesystem>
#include <stdexcept>

namespace weft::bench {

void as_rank(const Work& work, const std::string& store, RankEnd& end,
             const std::function<void(const collectives::Group&)>& f) {
  at::set_num_threads(1);
  if (work.gpu) {
    share_gpu(end.rank());
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
  }
  rpc::MemberOptions options{{.name = "rank" + std::to_string(end.rank())}};
  const bool hosts = !work.rate.empty();
  options.listen = {"tcp://" + (hosts ? Hosts::address(end.rank()) : "127.0.0.1") + ":0"};
  options.insecure = hosts;
  options.same_host = !work.tcp && !hosts;
  options.rendezvous = {.store = "file://" + store,
                        .rank = static_cast<std::size_t>(end.rank()),
                        .world_size = static_cast<std::size_t>(work.ranks)};
  rpc::Layers layers = tensor::layers();
  layers.push_back(collectives::layer());
  rpc::Job job(options, layers);
  job.join().get();
  collectives::GroupOptions how{.shared_memory = !work.tcp};
  if (hosts) how.host = "host" + std::to_string(end.rank());
  const auto group = collectives::Group::create(job.agent(), how).get();
  f(group);
  job.leave().get();  // otherwise the other ranks report this rank as lost
}

void measure(RankEnd& end, const collectives::Group& group, const std::function<void()>& step,
             const std::function<void(Figures&)>& add) {
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
  add(figures);
  end.report(figures);
}

Contender rank_contender(const char* name, const Work& work,
                         std::function<void(const std::string& store, RankEnd& end)> run) {
  return Contender{name, {{"caller", "main"}}, [work, run = std::move(run)](const Setting& setting) {
                     const std::string store = scratch_path(".store");
                     const auto hosts = work.make_hosts();
                     const auto load = work.make_load();
                     const Outcome outcome = measure_ranks(work.ranks, setting, [&](RankEnd& end) {
                       if (hosts) hosts->enter(end.rank());
                       run(store, end);
                     });
                     std::filesystem::remove(store);
                     return outcome;
                   }};
}

}  // namespace weft::bench
