#include "bench/ddp/weft_rank.h"

#include "bench/collectives/ranks.h"

#include <dlfcn.h>

#include <stdexcept>

namespace weft::bench {

void as_rank(const Work& work, const std::string& store, RankEnd& end,
             const std::function<void(const collectives::Group&)>& f) {
  at::set_num_threads(1);
  if (work.gpu) {
    share_gpu(end.rank());
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) throw std::runtime_error(dlerror());
  }
  rpc::MemberOptions options = member_options(end, store, work.ranks);
  const bool hosts = !work.rate.empty();
  if (hosts) options.listen = {"tcp://" + Hosts::address(end.rank()) + ":0"};
  options.insecure = hosts;
  options.same_host = !work.tcp && !hosts;
  rpc::Job job(options, group_layers());
  job.join().get();
  collectives::GroupOptions how{.shared_memory = !work.tcp};
  if (hosts) how.host = "host" + std::to_string(end.rank());
  const auto group = collectives::Group::create(job.agent(), how).get();
  f(group);
  job.leave().get();  // otherwise the other ranks report this rank as lost
}

void measure(RankEnd& end, const collectives::Group& group, const std::function<void()>& step,
             const std::function<void(Figures&)>& add) {
  Rounds rounds(end);
  rounds.run(step, tell_all(group));
  if (end.rank() != 0) return;
  Figures figures = rounds.figures();
  figures["steps_per_s"] = 1e6 / figures.at("p50_us");
  add(figures);
  end.report(figures);
}

Contender rank_contender(const char* name, const Work& work,
                         std::function<void(const std::string& store, RankEnd& end)> run) {
  return Contender{name, {{"caller", "main"}}, [work, run = std::move(run)](const Setting& setting) {
                     const auto hosts = work.make_hosts();
                     const auto load = work.make_load();
                     return measure_members(work.ranks, setting, [&](const std::string& store, RankEnd& end) {
                       if (hosts) hosts->enter(end.rank());
                       run(store, end);
                     });
                   }};
}

}  // namespace weft::bench
