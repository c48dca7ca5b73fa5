// Creation of groups: from members of a job, from a part of a group, from the survivors of one.
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/collectives/internal/group/collectives_layer.h>
#include <weft/parallel/collectives/internal/group/preparation.h>
#include <weft/parallel/collectives/internal/hosts/hosts_backend.h>
#include <weft/parallel/collectives/internal/rendezvous.h>
#include <weft/parallel/collectives/internal/shm/shared_backend.h>
#include <weft/rpc/job/job.h>

#include <algorithm>
#include <cstdlib>
#include <set>

namespace weft::collectives {
namespace {

std::vector<std::string> members_by_rank(const rpc::Job& job) {
  std::map<std::size_t, std::string> by_rank;
  for (const rpc::Member& member : job.members())
    if (member.rank) by_rank[*member.rank] = member.name;
  std::vector<std::string> names;
  for (auto& [rank, name] : by_rank) names.push_back(std::move(name));
  if (names.empty() || names.size() != job.world_size())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "a group of all members: " + std::to_string(names.size()) +
                         " ranks have joined, expected " +
                         (job.world_size() == 0 ? "a fixed world" : std::to_string(job.world_size())) +
                         ": await job.join()");
  return names;
}

std::filesystem::path flights_of(const GroupOptions& options) {
  if (!options.flight_recorder_dir.empty()) return options.flight_recorder_dir;
  const char* const folder = std::getenv("WEFT_FLIGHT_RECORDER_DIR");
  return folder == nullptr ? "" : folder;
}

// The backend for the memory that the members of a new group share.
std::pair<GroupBackend, std::unique_ptr<Backend>> backend_of(Rendezvous& group, const GroupOptions& options) {
  if (group.space != nullptr && !group.hosts)
    return {GroupBackend::memory, std::make_unique<SharedBackend>(std::move(group.space))};
  auto messages = std::make_unique<MessagesBackend>(group.rank, static_cast<int>(group.members.size()),
                                                    options.bounds, options.wire_dtype);
  if (group.space == nullptr) return {GroupBackend::messages, std::move(messages)};
  return {GroupBackend::hosts, std::make_unique<HostsBackend>(std::move(*group.hosts), std::move(group.space),
                                                              std::move(messages))};
}

// The surviving members of a group that has ended.
std::vector<std::string> survivors(rpc::Agent& agent, const std::vector<rpc::AgentId>& members) {
  std::set<rpc::AgentId> here;
  for (const rpc::Member& member : rpc::Job(agent).members()) here.insert(member.id());
  std::vector<std::string> names;
  for (const rpc::AgentId& member : members)
    if (here.contains(member)) names.push_back(member.name);
  return names;
}

}  // namespace

// The group that results from a rendezvous; nothing, if the rendezvous was for other members.
std::optional<Group> Group::make(const std::shared_ptr<CollectivesLayer>& layer, Rendezvous rendezvous,
                                 const GroupOptions& options) {
  if (rendezvous.members.empty()) {
    layer->give_up_group(options);
    return std::nullopt;
  }
  const auto forget = [known = std::weak_ptr(layer), id = rendezvous.id](GroupCore* core) {
    if (const auto layer = known.lock()) layer->remove(id, core->failure().error());
    delete core;
  };
  GroupCore::Options all{options, layer->devices(), layer->flights()};
  all.flight_recorder_dir = flights_of(options);
  auto [kind, backend] = backend_of(rendezvous, options);
  const std::shared_ptr<GroupCore> core(
      new GroupCore(layer->core(), rendezvous.id, std::move(all), std::move(rendezvous.members),
                    rendezvous.rank, kind, std::move(backend)),
      forget);
  if (const auto& folder = core->options().flight_recorder_dir; !folder.empty())
    layer->flights()->add({core, &core->failure()}, folder);
  layer->add(core);
  return Group(core);
}

rpc::Future<Group> Group::create(rpc::Agent& agent, GroupOptions options) {
  const auto layer = CollectivesLayer::of(*agent.core());
  std::vector<std::string>& names = options.members;
  if (names.empty()) names = members_by_rank(rpc::Job(agent));
  const auto self = std::find(names.begin(), names.end(), agent.name());
  if (self == names.end())
    refuse("group '" + options.name + "': this agent, '" + agent.name() + "', is none of the " +
           std::to_string(names.size()) + " members, expected its name in GroupOptions::members");
  std::set<std::string> unique;
  for (const std::string& name : names)
    if (!unique.insert(name).second)
      refuse("group '" + options.name + "': the list has the member '" + name +
             "' twice, expected each member once");

  std::string order = "weft.group/" + options.name;  // and its members, by rank
  for (const std::string& name : names) order += "/" + name;
  const Talk talk = [&agent, order, names, timeout = options.timeout](int round, rpc::Buffer said) {
    return rpc::Job(agent)
        .all_gather(said, {.name = order + (round == 0 ? "" : "/memory"), .among = names, .timeout = timeout})
        .then([names](rpc::Result<std::map<std::string, rpc::Buffer>>&& all) {
          return rpc::capture([&] {
            auto by_name = std::move(all).get();
            std::vector<rpc::Buffer> by_rank;
            for (const std::string& name : names) by_rank.push_back(std::move(by_name.at(name)));
            return by_rank;
          });
        });
  };
  layer->expect_group(options);
  return meet(talk, agent.id(),
              {.index = static_cast<int>(self - names.begin()),
               .of = static_cast<int>(names.size()),
               .number = layer->next_number()},
              options)
      .then([layer, options](rpc::Result<Rendezvous>&& rendezvous) {
        return rpc::capture([&] {
          if (!rendezvous.ok()) layer->give_up_group(options);
          return *make(layer, std::move(rendezvous).get(), options);
        });
      });
}

rpc::Future<std::optional<Group>> Group::split(std::optional<int> color, int key,
                                               std::optional<GroupOptions> wanted, Site site) const {
  GroupOptions options = wanted.value_or(this->options());
  if (!wanted || options.name == GroupOptions{}.name)
    options.name = name() + (color ? "/" + std::to_string(*color) : "");
  return split_in(core_->values().reserve_rounds(2), color, key, options, site);
}

rpc::Future<std::optional<Group>> Group::split_in(std::uint64_t rounds, std::optional<int> color, int key,
                                                  const GroupOptions& options, const Site& site) const {
  const auto layer = CollectivesLayer::of(*core_->agent());
  const Talk talk = [core = core_, site, rounds](int round, rpc::Buffer said) {
    return core->values().give({rounds + static_cast<std::uint64_t>(round)},
                               round == 0 ? "split()" : "split(), its memory", site, std::move(said), true,
                               std::nullopt);
  };
  layer->expect_group(options);
  const rpc::AgentId& self = core_->members()[static_cast<std::size_t>(rank())];
  return meet(talk, self,
              {.index = rank(), .of = size(), .number = layer->next_number(), .color = color, .key = key},
              options)
      .then([layer, options, core = core_](rpc::Result<Rendezvous>&& rendezvous) {
        return rpc::capture([&] {
          if (!rendezvous.ok()) layer->give_up_group(options);
          std::optional<Group> group = make(layer, std::move(rendezvous).get(), options);
          if (group) core->failure().add_split({group->core_, &group->core_->failure()});
          return group;
        });
      });
}

// Members may learn of a death at different times: a member whose rendezvous includes a dead member gets an
// error, and tries again without that member, until all survivors agree.
rpc::Future<Group> Group::shrink(rpc::Agent& agent) const {
  auto promise = std::make_shared<rpc::Promise<Group>>();
  auto future = promise->future();
  try_to_shrink(agent, *this, promise);
  return future;
}

void Group::try_to_shrink(rpc::Agent& agent, const Group& old,
                          const std::shared_ptr<rpc::Promise<Group>>& promise) {
  const std::vector<std::string> names = survivors(agent, old.core_->members());
  GroupOptions options = old.options();
  options.name += " shrunk";
  options.members = names;
  auto made = rpc::capture([&] { return create(agent, std::move(options)); });
  if (!made.ok()) return promise->fail(made.error());
  std::move(made).get().then([&agent, old, promise, names](rpc::Result<Group>&& group) {
    if (group.ok() || survivors(agent, old.core_->members()) == names)
      return promise->complete(std::move(group));
    try_to_shrink(agent, old, promise);
  });
}

}  // namespace weft::collectives
