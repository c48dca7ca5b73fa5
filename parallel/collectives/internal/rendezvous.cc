#include <weft/parallel/collectives/internal/rendezvous.h>

#include <weft/parallel/collectives/operation/internal/collective_call.h>
#include <weft/rpc/codec/agent_id_codec.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/tensor/dtype.h>

#include <sched.h>

#include <algorithm>
#include <set>

namespace weft::collectives {
WEFT_CODEC(Bounds, small_bytes, message_bytes, ahead_bytes, ring_bytes)

namespace {

using Cores = std::vector<std::uint64_t>;  // one bit each

// The first value of a member.
struct Introduction {
  rpc::AgentId self;
  std::uint64_t number = 0;  // of the group, if this is rank 0
  std::optional<int> color;
  int key = 0;
  std::optional<RegionAddress> memory;  // none: the member shares no memory
  Cores cores;                          // on which it may run
  std::string wire_dtype;               // GroupOptions::wire_dtype, by name
  Bounds bounds;                        // GroupOptions::bounds
  std::string host;                     // GroupOptions::host, and the host's name from the operating system
  bool relaxed = false;                 // GroupOptions::checks
};
WEFT_CODEC(Introduction, self, number, color, key, memory, cores, wire_dtype, bounds, host, relaxed)

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

// The hosts of the members, by rank. Members of one host share memory. A member without memory counts as a
// host of one member. So does each member of a host in `closed`: there a member failed to open the memory of
// another.
std::vector<std::string> hosts_of(const std::vector<Introduction>& members,
                                  const std::set<std::string>& closed = {}) {
  std::vector<std::string> hosts;
  for (const Introduction& member : members) {
    std::string host = member.memory ? member.host + " " + std::to_string(member.memory->bytes) : "";
    if (host.empty() || closed.contains(host)) host = "rank " + std::to_string(hosts.size());
    hosts.push_back(std::move(host));
  }
  return hosts;
}

std::shared_ptr<SharedSpace> open_space(const std::vector<Introduction>& members,
                                        const std::shared_ptr<SharedRegion>& own, int rank) {
  std::vector<std::shared_ptr<SharedRegion>> regions;
  for (const Introduction& member : members)
    regions.push_back(static_cast<int>(regions.size()) == rank ? own : SharedRegion::open(*member.memory));
  return std::make_shared<SharedSpace>(std::move(regions), rank, is_crowded(members));
}

// A member that shares memory with no other runs its levels in memory that no other member maps.
std::shared_ptr<SharedSpace> space_of_one(std::shared_ptr<SharedRegion> own) {
  if (own == nullptr) own = SharedRegion::unshared(SharedSpace::region_bytes(1, 0));
  return std::make_shared<SharedSpace>(std::vector{std::move(own)}, 0, false);
}

// Returns null if the member shares no memory, or has none to share.
std::shared_ptr<SharedRegion> make_region(const GroupOptions& options, int max_ranks) {
  if (!options.shared_memory || max_ranks < 2) return nullptr;
  auto made = rpc::capture(
      [&] { return SharedRegion::create(SharedSpace::region_bytes(max_ranks, options.shared_bytes)); });
  return made.ok() ? std::move(made).get() : nullptr;
}

constexpr std::string_view exact = "exact";  // no wire_dtype

std::string wire_text(const std::optional<at::ScalarType>& wire) {
  return std::string(wire ? tensor::dtype_name(*wire) : exact);
}

// The members with one color, by rank, as places in the exchange.
std::vector<std::size_t> ranks_of(const std::vector<Introduction>& all, std::optional<int> color) {
  std::vector<std::size_t> places;
  for (std::size_t seat = 0; seat < all.size(); ++seat)
    if (color && all[seat].color == color) places.push_back(seat);
  std::stable_sort(places.begin(), places.end(),
                   [&](std::size_t a, std::size_t b) { return all[a].key < all[b].key; });
  return places;
}

// A rendezvous after its first round.
struct Introduced {
  std::vector<std::size_t> places;    // of the members, in the exchange
  std::vector<Introduction> members;  // by rank
  Rendezvous rendezvous;              // with the space of its host's members, if that could be opened
  bool opened = true;                 // false: this member could not open the memory of another
  std::exception_ptr error = {};      // the members of this group cannot form it
};

std::string text_of(const Bounds& bounds) {
  return "small_bytes " + std::to_string(bounds.small_bytes) + ", message_bytes " +
         std::to_string(bounds.message_bytes) + ", ahead_bytes " + std::to_string(bounds.ahead_bytes) +
         ", ring_bytes " + std::to_string(bounds.ring_bytes);
}

const char* checks_text(bool relaxed) { return relaxed ? "relaxed" : "strict"; }

void expect_same_options(const std::vector<Introduction>& members) {
  for (const Introduction& member : members) {
    if (member.wire_dtype != exact && member.wire_dtype != wire_text(at::kHalf) &&
        member.wire_dtype != wire_text(at::kBFloat16))
      refuse("GroupOptions::wire_dtype of " + member.self.name + " is " + member.wire_dtype +
             ", expected float16, bfloat16 or none");
    if (!(member.bounds == members.front().bounds))
      refuse("the members of a group have different GroupOptions::bounds, expected equal ones: " +
             members.front().self.name + " has " + text_of(members.front().bounds) + "; " + member.self.name +
             " has " + text_of(member.bounds));
    if (member.relaxed != members.front().relaxed)
      refuse("the members of a group have different GroupOptions::checks, expected equal ones: " +
             members.front().self.name + " " + checks_text(members.front().relaxed) + ", " +
             member.self.name + " " + checks_text(member.relaxed));
    if (member.wire_dtype != members.front().wire_dtype)
      refuse("the members of a group have different GroupOptions::wire_dtype, expected equal ones: " +
             members.front().self.name + " '" + members.front().wire_dtype + "', " + member.self.name + " '" +
             member.wire_dtype + "'");
  }
}

Introduced introduced(const std::vector<Introduction>& all, const Seat& seat,
                      const std::shared_ptr<SharedRegion>& own) {
  Introduced result;
  result.places = ranks_of(all, seat.color);
  if (result.places.empty()) return result;
  Rendezvous& rendezvous = result.rendezvous;
  for (const std::size_t place : result.places) {
    if (place == static_cast<std::size_t>(seat.index))
      rendezvous.rank = static_cast<int>(rendezvous.members.size());
    result.members.push_back(all[place]);
    rendezvous.members.push_back(all[place].self);
  }
  expect_same_options(result.members);
  rendezvous.id = {result.members.front().self.incarnation, result.members.front().number};
  const auto hosts = hosts_of(result.members);
  std::vector<Introduction> here;
  int local_rank = 0;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    if (hosts[rank] != hosts[static_cast<std::size_t>(rendezvous.rank)]) continue;
    if (rank == static_cast<std::size_t>(rendezvous.rank)) local_rank = static_cast<int>(here.size());
    here.push_back(result.members[rank]);
  }
  if (here.size() < 2) return result;
  auto opened = rpc::capture([&] { return open_space(here, own, local_rank); });
  result.opened = opened.ok();
  if (opened.ok()) rendezvous.space = std::move(opened).get();
  return result;
}

// opened: by rank, the members' reports. All members reach the same decision for each host.
Rendezvous decided(Introduced introduced, const std::vector<bool>& opened,
                   const std::shared_ptr<SharedRegion>& own) {
  Rendezvous& rendezvous = introduced.rendezvous;
  if (rendezvous.members.empty()) return std::move(rendezvous);
  const auto before = hosts_of(introduced.members);
  std::set<std::string> closed;
  for (std::size_t rank = 0; rank < before.size(); ++rank)
    if (!opened[rank]) closed.insert(before[rank]);
  const auto hosts = hosts_of(introduced.members, closed);
  const auto here = std::count(hosts.begin(), hosts.end(), hosts[static_cast<std::size_t>(rendezvous.rank)]);
  const bool one_host = here == std::ssize(hosts) && here > 1;
  rendezvous.hosts = Hosts::of(hosts, rendezvous.rank);
  if (!one_host && !rendezvous.hosts) {
    rendezvous.space = nullptr;
  } else if (here == 1) {
    rendezvous.space = space_of_one(own);
  }
  return std::move(rendezvous);
}

// The current round, which a cancel() cancels.
class TalkRounds {
 public:
  void hold(int round, rpc::Future<bool> talk) {
    {
      rpc::MutexLock lock(mutex_);
      if (round < round_) return;  // the next one started before this one's future existed
      round_ = round;
      if (!cancelled_) {
        talk_ = std::move(talk);
        return;
      }
    }
    talk.cancel();
  }
  void cancel() {
    rpc::Future<bool> talk;
    {
      rpc::MutexLock lock(mutex_);
      cancelled_ = true;
      talk = std::move(talk_);
    }
    talk.cancel();
  }

 private:
  rpc::Mutex mutex_;
  int round_ WEFT_GUARDED_BY(mutex_) = 0;
  bool cancelled_ WEFT_GUARDED_BY(mutex_) = false;
  rpc::Future<bool> talk_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace

rpc::Future<Rendezvous> meet(Talk talk, rpc::AgentId self, Seat seat, const GroupOptions& options) {
  Introduction introduction{.self = std::move(self),
                            .number = seat.number,
                            .color = seat.color,
                            .key = seat.key,
                            .memory = std::nullopt,
                            .cores = own_cores(),
                            .wire_dtype = wire_text(options.wire_dtype),
                            .bounds = options.bounds,
                            .host = options.host + " " + SharedRegion::this_host(),
                            .relaxed = options.checks == Checks::relaxed};
  const auto own = seat.color ? make_region(options, seat.of) : nullptr;
  if (own != nullptr) introduction.memory = own->address();

  auto promise = std::make_shared<rpc::Promise<Rendezvous>>();
  auto future = promise->future();
  const auto rounds = std::make_shared<TalkRounds>();
  promise->on_cancel([rounds] { rounds->cancel(); });
  using Said = rpc::Result<std::vector<rpc::Buffer>>;
  auto introductions = talk(0, rpc::pack(introduction)).then([talk, seat, own, promise, rounds](Said&& said) {
    if (!said.ok()) {
      promise->fail(said.error());
      return false;
    }
    const auto first = std::make_shared<Introduced>();
    const auto met = rpc::capture([&] {
      std::vector<Introduction> all;
      for (const rpc::Buffer& bytes : said.value()) all.push_back(rpc::unpack<Introduction>(bytes));
      *first = introduced(all, seat, own);
    });
    // Members that cannot form their group take part in the second round, for which members of other groups
    // wait.
    if (!met.ok()) first->error = met.error();
    auto decisions = talk(1, rpc::pack(first->opened)).then([own, first, promise](Said&& said) {
      promise->complete(rpc::capture([&] {
        const auto all = std::move(said).get();
        if (first->error != nullptr) std::rethrow_exception(first->error);
        std::vector<bool> opened;
        for (const std::size_t place : first->places) opened.push_back(rpc::unpack<bool>(all.at(place)));
        if (own != nullptr) own->close_descriptor();
        return decided(std::move(*first), opened, own);
      }));
      return true;
    });
    rounds->hold(1, std::move(decisions));
    return true;
  });
  rounds->hold(0, std::move(introductions));
  return future;
}

}  // namespace weft::collectives
