#include <weft/rref/cycles.h>

#include <weft/rpc/core/when_all.h>
#include <weft/rref/rref_layer.h>

#include <algorithm>
#include <atomic>
#include <set>

namespace weft::rref {
namespace {

// --- The graph ---

struct Node {
  const std::string* owner;
  const HoldingObject* object;
  std::vector<std::size_t> next;
};

std::vector<Node> graph_of(const std::vector<Holdings>& agents) {
  std::vector<Node> nodes;
  std::map<RRefId, std::size_t> place;
  for (const Holdings& agent : agents)
    for (const HoldingObject& object : agent.objects) {
      for (const RRefId& id : object.ids) place[id] = nodes.size();
      nodes.push_back({&agent.agent, &object, {}});
    }
  for (Node& node : nodes)
    for (const HeldReference& held : node.object->held)
      if (const auto found = place.find(held.rref); found != place.end()) node.next.push_back(found->second);
  return nodes;
}

// Tarjan's strongly connected components (SIAM J. Computing 1(2), 1972), without recursion: a chain of
// objects may be long.
std::vector<std::vector<std::size_t>> components_of(const std::vector<Node>& nodes) {
  constexpr std::size_t none = static_cast<std::size_t>(-1);
  struct Visit {
    std::size_t node, edge;
  };
  std::vector<std::size_t> index(nodes.size(), none), low(nodes.size(), none), stack;
  std::vector<bool> on_stack(nodes.size(), false);
  std::vector<std::vector<std::size_t>> components;
  std::size_t visited = 0;
  for (std::size_t start = 0; start < nodes.size(); ++start) {
    if (index[start] != none) continue;
    std::vector<Visit> path{{start, 0}};
    while (!path.empty()) {
      auto& [node, edge] = path.back();
      if (edge == 0) {
        index[node] = low[node] = visited++;
        stack.push_back(node);
        on_stack[node] = true;
      }
      if (edge < nodes[node].next.size()) {
        const std::size_t next = nodes[node].next[edge++];
        if (index[next] == none) {
          path.push_back({next, 0});
        } else if (on_stack[next]) {
          low[node] = std::min(low[node], index[next]);
        }
        continue;
      }
      const std::size_t done = node;
      path.pop_back();
      if (!path.empty()) low[path.back().node] = std::min(low[path.back().node], low[done]);
      if (low[done] != index[done]) continue;
      std::vector<std::size_t> component;
      do {
        component.push_back(stack.back());
        on_stack[stack.back()] = false;
        stack.pop_back();
      } while (component.back() != done);
      std::sort(component.begin(), component.end());
      components.push_back(std::move(component));
    }
  }
  std::sort(components.begin(), components.end());
  return components;
}

bool is_cycle(const std::vector<Node>& nodes, const std::vector<std::size_t>& component) {
  const auto& next = nodes[component.front()].next;
  return component.size() > 1 || std::find(next.begin(), next.end(), component.front()) != next.end();
}

// Whether members of the cycle have all forks and all holds of the members.
bool is_garbage(const std::vector<Node>& nodes, const std::vector<std::size_t>& component) {
  std::set<ForkId> forks;
  std::map<RRefId, std::uint64_t> holds;
  for (const std::size_t member : component)
    for (const HeldReference& held : nodes[member].object->held) {
      if (held.shared) continue;
      if (held.fork) {
        forks.insert(*held.fork);
      } else {
        ++holds[held.rref];
      }
    }
  return std::all_of(component.begin(), component.end(), [&](std::size_t member) {
    const HoldingObject& object = *nodes[member].object;
    std::uint64_t explained = 0;
    for (const RRefId& id : object.ids)
      if (const auto found = holds.find(id); found != holds.end()) explained += found->second;
    return !object.named && object.holds == explained &&
           std::all_of(object.forks.begin(), object.forks.end(),
                       [&](const ForkId& fork) { return forks.contains(fork); });
  });
}

// --- An owner's answer ---

// There is one for each object, even if several RRefs refer to the object.
struct ObjectQuery {
  HoldingObject answer;
  std::shared_ptr<StoredObject> object;
  const Holder* holder = nullptr;
};

struct HoldingsQuery {
  std::shared_ptr<RRefLayer> layer;
  std::vector<ObjectQuery> objects;
  std::atomic<std::size_t> open{1};
  rpc::Promise<Holdings> promise;

  // Runs when all objects have reported: the live objects are read last, so that they include every reported
  // hold.
  void finish() {
    std::map<RRefId, std::size_t> place;
    for (std::size_t i = 0; i < objects.size(); ++i)
      for (const RRefId& id : objects[i].answer.ids) place[id] = i;
    for (const auto& live : layer->live_objects()) {
      const auto found = place.find(live.id);
      if (found == place.end()) continue;
      HoldingObject& answer = objects[found->second].answer;
      answer.type = live.info.type;
      answer.site = live.info.site;
      answer.holds += live.holds;
      for (const auto& [fork, user] : live.forks) answer.forks.push_back(fork);
    }
    Holdings holdings{layer->core()->id().name, {}};
    for (ObjectQuery& query : objects) holdings.objects.push_back(std::move(query.answer));
    objects.clear();
    promise.complete(std::move(holdings));
  }
  void arrive() {
    if (--open == 0) finish();
  }
};

void ask(ObjectQuery& query) {
  HeldReferences held;
  query.holder->held(held);
  // Copies of a handle share one reference; one more is in `held`.
  for (const auto& [reference, copies] : held.all())
    query.answer.held.push_back({reference->id(), reference->fork(), reference.use_count() != copies + 1});
}

rpc::Future<Holdings> holdings_of(const std::shared_ptr<RRefLayer>& layer) {
  auto holdings_query = std::make_shared<HoldingsQuery>();
  holdings_query->layer = layer;
  auto future = holdings_query->promise.future();
  std::map<StoredObject*, std::size_t> place;
  for (const auto& [id, object] : layer->stored_objects()) {
    const auto [found, fresh] = place.try_emplace(object.get(), holdings_query->objects.size());
    if (fresh) holdings_query->objects.push_back({{}, object, object->as<Holder>()});
    holdings_query->objects[found->second].answer.ids.push_back(id);
  }
  for (const auto& object : layer->named_objects())
    if (const auto found = place.find(object.get()); found != place.end())
      holdings_query->objects[found->second].answer.named = true;
  const std::size_t objects = holdings_query->objects.size();
  for (std::size_t i = 0; i < objects; ++i) {
    const ObjectQuery& query = holdings_query->objects[i];
    if (query.holder == nullptr) continue;
    ++holdings_query->open;
    query.object->turn().post([holdings_query, i] {
      try {
        ask(holdings_query->objects[i]);
      } catch (...) {
        // An object that does not report holds nothing.
      }
      holdings_query->arrive();
    });
  }
  holdings_query->arrive();
  return future;
}

struct HoldingsService {
  rpc::Future<Holdings> holdings() { return holdings_of(layer); }
  using Service =
      rpc::Service<"weft.rref", rpc::Method<"holdings", &HoldingsService::holdings, rpc::idempotent>>;
  std::shared_ptr<RRefLayer> layer;
};

}  // namespace

std::string to_string(const Cycle& cycle) {
  std::string text = cycle.garbage ? "a cycle without references from outside:" : "a cycle:";
  for (const CycleMember& member : cycle.members) {
    text += " " + member.type + " " + to_string(member.id) + " on " + member.owner;
    if (!member.site.empty()) text += " made at " + member.site;
    text += ",";
  }
  text.pop_back();
  return text;
}

std::vector<Cycle> cycles_of(const std::vector<Holdings>& agents) {
  const std::vector<Node> nodes = graph_of(agents);
  std::vector<Cycle> cycles;
  for (const auto& component : components_of(nodes)) {
    if (!is_cycle(nodes, component)) continue;
    Cycle& cycle = cycles.emplace_back();
    for (const std::size_t member : component) {
      const HoldingObject& object = *nodes[member].object;
      cycle.members.push_back({*nodes[member].owner, object.ids.front(), object.type, object.site});
    }
    cycle.garbage = is_garbage(nodes, component);
  }
  return cycles;
}

rpc::Future<Holdings> holdings(const rpc::Peer& owner) { return owner.call<&HoldingsService::holdings>(); }

rpc::Future<std::vector<Cycle>> find_cycles(const std::vector<rpc::Peer>& agents) {
  std::vector<rpc::Future<Holdings>> answers;
  answers.reserve(agents.size());
  for (const rpc::Peer& agent : agents) answers.push_back(holdings(agent));
  return rpc::when_all(std::move(answers))
      .then([](rpc::Result<std::vector<Holdings>>&& all) -> rpc::Result<std::vector<Cycle>> {
        if (!all.ok()) return all.error();
        return cycles_of(all.value());
      });
}

void serve_holdings(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer) {
  auto service = std::make_shared<HoldingsService>();
  service->layer = layer;
  rpc::detail::serve_object(core.methods(), service);
}

}  // namespace weft::rref
