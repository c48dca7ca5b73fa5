#include "tools/weft/dash/collector.h"

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/endpoint/dynamic_call.h>
#include <weft/rpc/job/store/remote_store.h>
#include <weft/rpc/trace/tracer.h>

#include <algorithm>

#include "tools/weft/errors.h"
#include "tools/weft/flight_report.h"

namespace weft::tool {
namespace {

constexpr std::string_view references_method = "weft.rref.list", store_method = "weft.store.list";
constexpr std::uint64_t max_references = 50, max_operations = 8;

// The first address of a member that this process can call; empty: none.
std::string address_of(const rpc::MemberRecord& member) {
  for (const std::string& address : member.addresses) {
    try {
      return complete_address(address);
    } catch (const UsageError&) {
    }
  }
  return {};
}

// The queries to one agent. A query is absent if the agent does not serve its method.
struct AgentQueries {
  rpc::Peer peer;
  rpc::Future<rpc::AgentStats> stats;
  rpc::Future<rpc::CallsInFlight> calls;
  std::optional<rpc::Future<rref::ReferenceListing>> references;
  std::optional<rpc::Future<rpc::DynamicReply>> flight;
  bool traced = false;
};

// An agent may deny one query because of its permissions, and answer the others.
template <class Ask>
void unless_refused(Ask&& ask) {
  try {
    ask();
  } catch (const rpc::Error&) {
  }
}

AgentSample sample_of(const std::string& address, AgentQueries queries) {
  AgentSample sample;
  sample.address = address;
  try {
    sample.stats = queries.stats.get();
  } catch (const rpc::Error& error) {
    sample.silent = error.what();
    return sample;
  }
  unless_refused([&] { sample.calls = queries.calls.get(); });
  if (queries.references) unless_refused([&] { sample.references = queries.references->get(); });
  if (queries.flight) unless_refused([&] { sample.groups = dumps_of(queries.flight->get()); });
  if (queries.traced) unless_refused([&] { sample.spans = rpc::collect_spans(queries.peer); });
  return sample;
}

}  // namespace

Collector::Collector(Client& client, const std::vector<std::string>& others)
    : client_(client), given_{client.address()} {
  for (const std::string& other : others) given_.push_back(complete_address(other));
}

JobSample Collector::collect() {
  client_.restart();
  JobSample sample;
  std::map<std::string, std::string> silent;
  learn_methods(given_, silent);
  sample.members = ask_store();

  if (sample.members) members_ = *sample.members;
  std::vector<std::string> addresses = given_;
  for (const rpc::MemberRecord& member : members_) {
    const bool given =
        std::any_of(member.addresses.begin(), member.addresses.end(), [&](const auto& address) {
          return std::find(given_.begin(), given_.end(), address) != given_.end();
        });
    const std::string address = member.here() && !given ? address_of(member) : "";
    if (!address.empty()) addresses.push_back(address);
  }
  learn_methods(addresses, silent);
  sample.agents = ask(addresses, silent);
  sample.time = rpc::Clock::now().time_since_epoch().count();
  return sample;
}

// In practice, the methods of one incarnation do not change. Another incarnation at the same address may have
// other methods.
void Collector::learn_methods(const std::vector<std::string>& addresses,
                              std::map<std::string, std::string>& silent) {
  std::map<std::string, rpc::Future<std::vector<rpc::MethodInfo>>> queries;
  for (const std::string& address : addresses)
    if (known_[address].methods.empty() && !silent.contains(address) && !queries.contains(address))
      queries.emplace(address, rpc::list_methods(client_.peer_at(address)));
  for (auto& [address, answer] : queries) {
    try {
      for (const rpc::MethodInfo& method : answer.get()) known_[address].methods.insert(method.name);
    } catch (const rpc::Error& error) {
      silent[address] = error.what();
    }
  }
}

std::optional<std::vector<rpc::MemberRecord>> Collector::ask_store() {
  for (const std::string& address : given_) {
    if (!known_[address].methods.contains(std::string(store_method))) continue;
    try {
      rpc::RemoteStore store(client_.peer_at(address));
      const rpc::Roster roster(store.list(std::string(rpc::membership_keys::members)).get());
      std::vector<rpc::MemberRecord> members;
      for (const auto& [name, record] : roster.members()) members.push_back(*record);
      return members;
    } catch (const rpc::Error&) {  // the agent that keeps the store has ended, or the record is malformed
    }
  }
  return std::nullopt;
}

std::vector<AgentSample> Collector::ask(const std::vector<std::string>& addresses,
                                        const std::map<std::string, std::string>& silent) {
  std::map<std::string, AgentQueries> queries;
  for (const std::string& address : addresses) {
    if (silent.contains(address) || queries.contains(address)) continue;
    const auto& methods = known_[address].methods;
    const auto serves = [&](std::string_view method) { return methods.contains(std::string(method)); };
    const rpc::Peer peer = client_.peer_at(address);
    AgentQueries each{peer, rpc::stats(peer), rpc::calls_in_flight(peer), {}, {}, serves(rpc::spans_method)};
    if (serves(references_method)) each.references = rref::list(peer, max_references);
    if (serves(flight_method)) each.flight = ask_flight(peer, max_operations);
    queries.emplace(address, std::move(each));
  }

  std::vector<AgentSample> samples;
  std::set<std::pair<std::string, std::uint64_t>> seen;  // an agent may have several of the addresses
  for (auto& [address, each] : queries) {
    AgentSample sample = sample_of(address, std::move(each));
    if (!sample.silent.empty()) {
      known_.erase(address);
      samples.push_back(std::move(sample));
      continue;
    }
    Known& known = known_[address];
    if (known.incarnation != 0 && known.incarnation != sample.stats.incarnation) known.methods.clear();
    known.incarnation = sample.stats.incarnation;
    std::erase_if(sample.calls.served,
                  [&](const rpc::ServedCall& call) { return call.call.caller == client_.name(); });
    if (seen.emplace(sample.stats.name, sample.stats.incarnation).second)
      samples.push_back(std::move(sample));
  }
  for (const auto& [address, why] : silent) {
    AgentSample sample;
    sample.address = address;
    sample.silent = why;
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace weft::tool
