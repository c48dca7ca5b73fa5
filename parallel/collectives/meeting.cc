#include <weft/parallel/collectives/meeting.h>

#include <sched.h>

#include <algorithm>

namespace weft::collectives {
namespace {

using Cores = std::vector<std::uint64_t>;  // a bit each

// What a member says first.
struct Introduction {
  std::uint64_t incarnation = 0;
  std::uint64_t number = 0;             // of the group, where this is rank 0
  std::optional<RegionAddress> memory;  // none: it shares none
  Cores cores;                          // on which it may run
};
WEFT_CODEC(Introduction, incarnation, number, memory, cores)

Cores own_cores() {
  cpu_set_t set;
  Cores cores;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) {
      cores.resize(std::max(cores.size(), core / 64 + 1));
      cores[core / 64] |= std::uint64_t{1} << core % 64;
    }
  return cores;
}

// Whether there are more members than cores for all of them.
bool is_crowded(const std::vector<Introduction>& members) {
  Cores all;
  for (const Introduction& member : members) {
    all.resize(std::max(all.size(), member.cores.size()));
    for (std::size_t i = 0; i < member.cores.size(); ++i) all[i] |= member.cores[i];
  }
  std::size_t cores = 0;
  for (const std::uint64_t bits : all) cores += static_cast<std::size_t>(std::popcount(bits));
  return members.size() > cores;
}

bool may_share(const std::vector<Introduction>& members) {
  return members.size() > 1 && std::all_of(members.begin(), members.end(), [&](const Introduction& member) {
           return member.memory && member.memory->host == members.front().memory->host &&
                  member.memory->bytes == members.front().memory->bytes;
         });
}

std::shared_ptr<SharedSpace> open_space(const std::vector<Introduction>& members,
                                        const std::shared_ptr<SharedRegion>& own, int rank) {
  std::vector<std::shared_ptr<SharedRegion>> regions;
  for (const Introduction& member : members)
    regions.push_back(static_cast<int>(regions.size()) == rank ? own : SharedRegion::open(*member.memory));
  return std::make_shared<SharedSpace>(std::move(regions), rank, is_crowded(members));
}

}  // namespace

rpc::Future<Meeting> meet(rpc::Agent& agent, const GroupOptions& options, int rank, std::uint64_t number) {
  std::string name = "weft.group/" + options.name;  // and which members, by which ranks
  for (const std::string& member : options.members) name += "/" + member;
  const rpc::CollectiveOptions all{.name = name, .among = options.members, .deadline = options.deadline};

  // Memory that cannot be had is no reason not to meet: then messages do.
  std::shared_ptr<SharedRegion> own;
  if (options.shared_memory && options.members.size() > 1) {
    const std::size_t bytes =
        SharedSpace::region_bytes(static_cast<int>(options.members.size()), options.shared_bytes);
    if (auto made = rpc::capture([&] { return SharedRegion::create(bytes); }); made.ok())
      own = std::move(made).get();
  }
  Introduction introduction{agent.id().incarnation, number, std::nullopt, own_cores()};
  if (own != nullptr) introduction.memory = own->address();

  auto promise = std::make_shared<rpc::Promise<Meeting>>();
  auto future = promise->future();
  using Introductions = std::map<std::string, Introduction>;
  agent.all_gather(introduction, all)
      .then(
          [&agent, all, own, rank, promise, names = options.members](rpc::Result<Introductions>&& gathered) {
            if (!gathered.ok()) return promise->fail(gathered.error());
            Introductions by_name = std::move(gathered).get();
            auto meeting = std::make_shared<Meeting>();
            std::vector<Introduction> members;
            for (const std::string& member : names) {
              members.push_back(std::move(by_name.at(member)));
              meeting->members.push_back({member, members.back().incarnation});
            }
            meeting->id = {members.front().incarnation, members.front().number};
            if (!may_share(members)) return promise->complete(std::move(*meeting));
            auto opened = rpc::capture([&] { return open_space(members, own, rank); });
            if (opened.ok()) meeting->space = std::move(opened).get();
            // All of them, or none.
            rpc::CollectiveOptions again = all;
            again.name += "/memory";
            agent.all_gather(meeting->space != nullptr, again)
                .then([own, meeting, promise](rpc::Result<std::map<std::string, bool>>&& opened) {
                  if (!opened.ok()) return promise->fail(opened.error());
                  own->close_descriptor();
                  for (const auto& [name, has_it] : opened.value())
                    if (!has_it) meeting->space = nullptr;
                  promise->complete(std::move(*meeting));
                });
          });
  return future;
}

}  // namespace weft::collectives
