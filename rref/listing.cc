#include <weft/rref/listing.h>

#include <weft/rref/rref_layer.h>

#include <algorithm>

namespace weft::rref {
namespace {

std::string_view name_of(protocol::ObjectState state) {
  switch (state) {
    case protocol::ObjectState::expected:
      return "expected";
    case protocol::ObjectState::creating:
      return "creating";
    case protocol::ObjectState::live:
      return "live";
    case protocol::ObjectState::failed:
      return "failed";
  }
  return "";
}

ReferenceStats count(const std::vector<protocol::LiveObject>& objects,
                     const std::vector<protocol::ForkView>& forks) {
  ReferenceStats stats;
  for (const auto& object : objects) {
    if (object.state == protocol::ObjectState::live) {
      ++stats.objects;
    } else if (object.state == protocol::ObjectState::failed) {
      ++stats.failed;
    } else {
      ++stats.creating;
    }
    stats.holds += object.holds;
    stats.forks += object.forks.size();
  }
  stats.references = forks.size();
  for (const auto& fork : forks) {
    stats.pending += fork.stage == protocol::Stage::pending ? 1 : 0;
    stats.children += fork.children;
  }
  return stats;
}

ReferenceListing listing_of(const RRefLayer& layer, std::uint64_t limit) {
  auto objects = layer.live_objects();
  ReferenceListing listing;
  listing.agent = layer.core()->id().name;
  listing.stats = count(objects, layer.live_forks());
  std::stable_sort(objects.begin(), objects.end(),
                   [](const auto& a, const auto& b) { return a.info.made < b.info.made; });
  if (objects.size() > limit) {
    listing.more = objects.size() - limit;
    objects.resize(limit);
  }
  std::map<RRefId, std::optional<std::uint64_t>> bytes;
  for (const auto& [id, stored] : layer.stored_objects()) bytes[id] = stored->bytes();
  const auto now = layer.now();
  for (const auto& object : objects) {
    ObjectListing& line = listing.objects.emplace_back();
    line.id = to_string(object.id);
    line.type = object.info.type;
    line.state = name_of(object.state);
    if (const auto found = bytes.find(object.id); found != bytes.end()) line.bytes = found->second;
    line.holds = object.holds;
    for (const auto& [fork, user] : object.forks) line.users.push_back(user.name);
    std::sort(line.users.begin(), line.users.end());
    // An object that is only expected has no time of creation.
    if (object.info.made != rpc::Clock::time_point{})
      line.age = std::max(std::chrono::duration<double>(now - object.info.made).count(), 0.0);
    line.site = object.info.site;
  }
  return listing;
}

struct ListingService {
  ReferenceListing list(std::optional<std::uint64_t> limit) {
    return listing_of(*layer, limit.value_or(all_objects));
  }
  using Service =
      rpc::Service<"weft.rref",
                   rpc::Method<"list", &ListingService::list, rpc::idempotent, rpc::non_blocking>>;
  std::shared_ptr<RRefLayer> layer;
};

}  // namespace

ReferenceStats stats(const rpc::Agent& agent) {
  const auto layer = RRefLayer::of(*agent.core());
  return count(layer->live_objects(), layer->live_forks());
}

ReferenceListing list(const rpc::Agent& agent, std::uint64_t limit) {
  return listing_of(*RRefLayer::of(*agent.core()), limit);
}

rpc::Future<ReferenceListing> list(const rpc::Peer& peer, std::uint64_t limit) {
  return peer.call<&ListingService::list>(std::optional(limit));
}

void RRefLayer::stats(rpc::LayerStats& to) const {
  rpc::for_each_field(count(live_objects(), live_forks()), [&](std::string_view name, std::uint64_t number) {
    to["rref." + std::string(name)] = number;
  });
}

void serve_listing(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer) {
  auto service = std::make_shared<ListingService>();
  service->layer = layer;
  rpc::detail::serve_object(core.methods(), service);
}

}  // namespace weft::rref
