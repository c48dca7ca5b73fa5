#include <weft/parallel/collectives/meeting.h>

#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/tensor/dtype.h>

#include <sched.h>

#include <algorithm>
#include <set>

namespace weft::collectives {
WEFT_CODEC(Bounds, small_bytes, message_bytes, ahead_bytes, ring_bytes)

namespace {

using Cores = std::vector<std::uint64_t>;  // a bit each

// What a member says first.
struct Introduction {
  rpc::AgentId self;
  std::uint64_t number = 0;  // of the group, where this is rank 0
  std::optional<int> colour;
  int key = 0;
  std::optional<RegionAddress> memory;  // none: it shares none
  Cores cores;                          // on which it may run
  std::string wire;                     // GroupOptions::wire, by name
  Bounds bounds;                        // GroupOptions::bounds
  std::string host;                     // GroupOptions::host, and what the system says
};
WEFT_CODEC(Introduction, self, number, colour, key, memory, cores, wire, bounds, host)

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
           return member.memory && member.memory->bytes == members.front().memory->bytes;
         });
}

std::shared_ptr<SharedSpace> open_space(const std::vector<Introduction>& members,
                                        const std::shared_ptr<SharedRegion>& own, int rank) {
  std::vector<std::shared_ptr<SharedRegion>> regions;
  for (const Introduction& member : members)
    regions.push_back(static_cast<int>(regions.size()) == rank ? own : SharedRegion::open(*member.memory));
  return std::make_shared<SharedSpace>(std::move(regions), rank, is_crowded(members));
}

// Memory that cannot be had is no reason not to meet: then messages do.
std::shared_ptr<SharedRegion> make_region(const GroupOptions& options, int most_ranks) {
  if (!options.shared_memory || most_ranks < 2) return nullptr;
  auto made = rpc::capture(
      [&] { return SharedRegion::create(SharedSpace::region_bytes(most_ranks, options.shared_bytes)); });
  return made.ok() ? std::move(made).get() : nullptr;
}

std::string wire_text(const std::optional<at::ScalarType>& wire) {
  return wire ? std::string(tensor::dtype_name(*wire)) : "exact";
}

// Those of one colour, by rank, as places in the talk.
std::vector<std::size_t> ranks_of(const std::vector<Introduction>& all, std::optional<int> colour) {
  std::vector<std::size_t> places;
  for (std::size_t seat = 0; seat < all.size(); ++seat)
    if (colour && all[seat].colour == colour) places.push_back(seat);
  std::stable_sort(places.begin(), places.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].key < all[b].key; });
  return places;
}

// What the introductions of all lead to, as far as this one can tell; `places`: of the members, in the talk.
Meeting first_part(const std::vector<Introduction>& all, int seat, std::optional<int> colour,
                   const std::shared_ptr<SharedRegion>& own, std::vector<std::size_t>& places) {
  Meeting meeting;
  places = ranks_of(all, colour);
  if (places.empty()) return meeting;
  std::vector<Introduction> members;
  for (const std::size_t each : places) {
    members.push_back(all[each]);
    meeting.members.push_back(all[each].self);
  }
  for (const Introduction& member : members) {
    if (!(member.bounds == members.front().bounds))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "members of a group differ in its bounds: " + members.front().self.name + " and " +
                           member.self.name);
    if (member.wire != members.front().wire)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "members of a group differ in its wire: " + members.front().self.name + " '" +
                           members.front().wire + "', " + member.self.name + " '" + member.wire + "'");
  }
  meeting.id = {members.front().self.incarnation, members.front().number};
  meeting.rank = static_cast<int>(std::find(places.begin(), places.end(), static_cast<std::size_t>(seat)) -
                                  places.begin());
  if (!may_share(members)) return meeting;
  std::vector<std::string> host_of_rank;
  for (const Introduction& member : members) host_of_rank.push_back(member.host);
  const bool one_host = std::set(host_of_rank.begin(), host_of_rank.end()).size() == 1;
  meeting.hosts = Hosts::of(host_of_rank, meeting.rank);
  if (!one_host && !meeting.hosts) return meeting;
  int local_rank = meeting.rank;
  if (meeting.hosts) {
    std::vector<Introduction> here;
    for (const int rank : meeting.hosts->ranks[static_cast<std::size_t>(meeting.hosts->host)])
      here.push_back(members[static_cast<std::size_t>(rank)]);
    local_rank = meeting.hosts->index;
    members = std::move(here);
  }
  auto opened = rpc::capture([&] { return open_space(members, own, local_rank); });
  if (opened.ok()) meeting.space = std::move(opened).get();
  return meeting;
}

}  // namespace

rpc::Future<Meeting> meet(Talk talk, rpc::AgentId self, Seat seat, const GroupOptions& options) {
  Introduction introduction{.self = std::move(self),
                            .number = seat.number,
                            .colour = seat.colour,
                            .key = seat.key,
                            .memory = std::nullopt,
                            .cores = own_cores(),
                            .wire = wire_text(options.wire),
                            .bounds = options.bounds,
                            .host = options.host + " " + SharedRegion::this_host()};
  const auto own = seat.colour ? make_region(options, seat.of) : nullptr;
  if (own != nullptr) introduction.memory = own->address();

  auto promise = std::make_shared<rpc::Promise<Meeting>>();
  auto future = promise->future();
  using Said = rpc::Result<std::vector<rpc::Buffer>>;
  talk(0, rpc::pack(introduction)).then([talk, seat, own, promise](Said&& said) {
    std::vector<std::size_t> places;
    auto met = rpc::capture([&] {
      std::vector<Introduction> all;
      for (const rpc::Buffer& bytes : std::move(said).get()) all.push_back(rpc::unpack<Introduction>(bytes));
      return first_part(all, seat.index, seat.colour, own, places);
    });
    if (!met.ok()) return promise->fail(met.error());
    const auto meeting = std::make_shared<Meeting>(std::move(met).get());
    // Memory is shared by all of them, or by none.
    talk(1, rpc::pack(meeting->space != nullptr)).then([places, own, meeting, promise](Said&& said) {
      promise->complete(rpc::capture([&] {
        const auto all = std::move(said).get();
        for (const std::size_t each : places)
          if (!rpc::unpack<bool>(all.at(each))) meeting->space = nullptr;
        if (own != nullptr) own->close_descriptor();
        return std::move(*meeting);
      }));
    });
  });
  return future;
}

}  // namespace weft::collectives
