// weft itself: groups over agents, each a process.
#include "bench/collectives/ranks.h"
#include "bench/collectives/work.h"

#include <ATen/ATen.h>

namespace weft::bench {
namespace {

using collectives::Group;

void run(const Work& work, const std::string& store, RankEnd& end) {
  at::set_num_threads(1);
  rpc::MemberOptions options = member_options(end, store, work.ranks);
  const bool hosts = work.kind == Kind::hosts;
  if (hosts) options.listen = {"tcp://" + Hosts::address(work.host_of(end.rank())) + ":0"};
  options.insecure = hosts;
  options.same_host = !hosts && work.kind != Kind::tcp;
  rpc::Job job(options, group_layers());
  job.join().get();
  collectives::GroupOptions how{.shared_memory = work.kind != Kind::tcp};
  if (work.bounds) how.bounds = *work.bounds;
  if (hosts) how.host = "host" + std::to_string(work.host_of(end.rank()));
  // Inlined, because the rank waits for each result.
  const Group group = Group::create(job.agent(), how).get().inlined();

  const auto make = [&](std::size_t elements) {
    const std::vector<std::int64_t> sizes{static_cast<std::int64_t>(elements)};
    return (work.kind == Kind::group ? group.empty(sizes) : at::empty(sizes)).zero_();
  };
  const auto first = [](const at::Tensor& tensor) { return tensor[0].item<float>(); };
  const at::Tensor whole = make(work.elements()), part = make(work.part()), other = make(work.elements());
  const auto collective = [&] {
    switch (work.operation) {
      case Operation::all_reduce:
        return group.all_reduce(whole).get();
      case Operation::broadcast:
        return group.broadcast(whole, 0).get();
      case Operation::all_gather:
        return group.all_gather(whole, part).get();
      case Operation::reduce_scatter:
        return group.reduce_scatter(part, whole).get();
      case Operation::all_to_all:
        return group.all_to_all(other, whole).get();
    }
  };
  whole.fill_(end.rank() + 1), part.fill_(end.rank() + 1);
  collective();
  const auto sum = static_cast<float>(work.ranks * (work.ranks + 1) / 2);
  expect_answer(
      first(work.operation == Operation::reduce_scatter ? part
            : work.operation == Operation::all_to_all   ? other
                                                        : whole) ==
      (work.operation == Operation::all_reduce || work.operation == Operation::reduce_scatter ? sum : 1));
  whole.zero_(), part.zero_();

  measure_rounds(end, work, collective, tell_all(group));
  job.leave().get();  // otherwise the other ranks report this rank as lost
}

Contender contender(const char* name, const Work& work) {
  return Contender{name, {{"caller", "main"}}, [work](const Setting& setting) {
                     const auto hosts = work.make_hosts();
                     return measure_members(work.ranks, setting, [&](const std::string& store, RankEnd& end) {
                       if (hosts) hosts->enter(work.host_of(end.rank()));
                       run(work, store, end);
                     });
                   }};
}
}  // namespace

std::optional<Contender> weft_peer(const Work& work) { return contender("weft", work); }

std::vector<Contender> weft_algorithms(Work work) {
  constexpr std::size_t any = std::size_t{1} << 40;
  std::vector<Contender> contenders{contender("weft", work)};
  const auto add = [&](const char* name, collectives::Bounds bounds) {
    work.bounds = bounds;
    contenders.push_back(contender(name, work));
  };
  add("doubling", {.small_bytes = any});
  add("ring", {.small_bytes = 0, .ring_bytes = 0});
  add("halving", {.small_bytes = 0, .ring_bytes = any});
  return contenders;
}

std::vector<Contender> weft_messages(Work work) {
  std::vector<Contender> contenders{contender("weft", work)};
  const auto add = [&](const char* name, std::size_t bytes) {
    work.bounds = collectives::Bounds{.message_bytes = bytes};
    contenders.push_back(contender(name, work));
  };
  add("64KiB", 64 << 10);
  add("128KiB", 128 << 10);
  add("512KiB", 512 << 10);
  add("1MiB", 1 << 20);
  add("4MiB", 4 << 20);
  return contenders;
}

}  // namespace weft::bench
