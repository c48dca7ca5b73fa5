#include "tools/weft/wait_graph.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace {

constexpr std::size_t deepest = 1000;  // the maximum depth that is printed, because peers control the data

using rpc::CallName;
using rpc::CallsInFlight;
using rpc::MadeCall;
using rpc::ServedCall;

// The reports of the caller and of the callee about one call.
struct Sides {
  const CallsInFlight* caller = nullptr;
  const MadeCall* made = nullptr;
  const CallsInFlight* callee = nullptr;
  const ServedCall* served = nullptr;

  double age() const {
    return std::max(made != nullptr ? made->age : 0, served != nullptr ? served->age : 0);
  }
};
using AllSides = std::map<CallName, Sides>;

AllSides collect(const std::vector<CallsInFlight>& agents) {
  AllSides all;
  for (const auto& agent : agents) {
    for (const auto& call : agent.made) {
      Sides& sides = all[{agent.name, agent.incarnation, call.id}];
      sides.caller = &agent;
      sides.made = &call;
    }
    for (const auto& call : agent.served) {
      Sides& sides = all[call.call];
      sides.callee = &agent;
      sides.served = &call;
    }
  }
  return all;
}

std::string text_of(const Sides& sides, const std::set<std::string>& asked) {
  const std::string& method = sides.served != nullptr ? sides.served->method : sides.made->method;
  const std::string& where = sides.callee != nullptr ? sides.callee->name : sides.made->peer;
  std::string text = method + " on " + where + ", " + text_of_seconds(sides.age());
  if (sides.served != nullptr) {
    text += ", " + sides.served->state;
    if (sides.served->state == "queued") text += " for the " + sides.served->on;
    if (sides.served->state == "running") text += " on the " + sides.served->on;
  } else if (sides.made->state == rpc::made_connecting) {
    text += ", not sent: no connection";
  } else if (sides.made->state == rpc::made_held) {
    text += ", not sent: no credit";
  } else if (!asked.contains(where)) {
    text += ", state unknown: that agent was not queried";
  } else {
    text += ", not at that agent: in transit or completed";
  }
  if (sides.made != nullptr && sides.made->left >= 0)
    text += ", deadline in " + text_of_seconds(sides.made->left);
  return printable(text);
}

// The calls for which a queued call waits: the calls that its method's limit has admitted, the call that runs
// on its object (or is suspended on it), or the calls that occupy all handler threads.
std::vector<CallName> ahead_of(const ServedCall& queued, const CallsInFlight& agent) {
  std::vector<CallName> admitted, on_object, off_object, running;
  for (const auto& call : agent.served) {
    const bool runs = call.state == "running";
    if (call.on != "limit" && call.state != "preparing" && call.method == queued.method)
      admitted.push_back(call.call);
    if (call.queue == queued.queue && (runs || call.state == "suspended"))
      (runs ? on_object : off_object).push_back(call.call);
    if (runs && call.on != "loop") running.push_back(call.call);
  }
  if (queued.on == "limit") return admitted;
  if (queued.on == "object" && !on_object.empty()) return on_object;
  if (queued.on == "object" && !off_object.empty()) return off_object;
  if (queued.on != "loop" && running.size() >= agent.handler_threads) return running;
  return {};
}

// Whether each call is in a cycle, or waits for a call in a cycle. The algorithm repeatedly removes calls
// that wait for no remaining call. The calls that it cannot remove are the result.
std::vector<bool> held_up(const WaitGraph& graph) {
  std::vector<std::vector<std::size_t>> waiting(graph.calls.size());  // the calls that wait for each call
  std::vector<std::size_t> left(graph.calls.size()), free;
  for (std::size_t i = 0; i < graph.calls.size(); ++i) {
    left[i] = graph.calls[i].waits_for.size();
    if (left[i] == 0) free.push_back(i);
    for (const std::size_t awaited : graph.calls[i].waits_for) waiting[awaited].push_back(i);
  }
  std::vector<bool> held(graph.calls.size(), true);
  while (!free.empty()) {
    const std::size_t call = free.back();
    free.pop_back();
    held[call] = false;
    for (const std::size_t i : waiting[call])
      if (--left[i] == 0) free.push_back(i);
  }
  return held;
}

// A shortest cycle through a call, by breadth-first search.
std::vector<std::size_t> cycle_through(const WaitGraph& graph, std::size_t start) {
  std::vector<std::optional<std::size_t>> from(graph.calls.size());
  std::vector<std::size_t> queue{start};
  for (std::size_t i = 0; i < queue.size(); ++i) {
    for (const std::size_t next : graph.calls[queue[i]].waits_for) {
      if (next == start) {
        std::vector<std::size_t> cycle;
        for (std::size_t at = queue[i]; at != start; at = *from[at]) cycle.push_back(at);
        cycle.push_back(start);
        std::reverse(cycle.begin(), cycle.end());
        return cycle;
      }
      if (next == start || from[next]) continue;
      from[next] = queue[i];
      queue.push_back(next);
    }
  }
  return {};
}

void append(std::string& out, const WaitGraph& graph, std::size_t call, std::size_t depth,
            std::vector<bool>& told) {
  out += std::string(2 * depth, ' ') + printable(graph.calls[call].name.caller) + "#" +
         std::to_string(graph.calls[call].name.id) + " " + graph.calls[call].text;
  if (told[call] || depth >= deepest) {
    out += graph.calls[call].waits_for.empty() ? "\n" : told[call] ? " (above)\n" : " ...\n";
    return;
  }
  told[call] = true;
  out += '\n';
  for (const std::size_t next : graph.calls[call].waits_for) append(out, graph, next, depth + 1, told);
}

}  // namespace

WaitGraph wait_graph(const std::vector<CallsInFlight>& agents, double older) {
  std::set<std::string> asked;
  for (const auto& agent : agents) asked.insert(agent.name);
  const AllSides all = collect(agents);
  std::vector<AllSides::const_iterator> order;
  for (auto call = all.begin(); call != all.end(); ++call)
    if (call->second.age() >= older) order.push_back(call);
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a->second.age() > b->second.age(); });

  WaitGraph graph;
  std::map<CallName, std::size_t> place;
  for (const auto& call : order) {
    place[call->first] = graph.calls.size();
    graph.calls.push_back({call->first, text_of(call->second, asked), call->second.age(), {}, false});
  }
  const auto edge = [&](const CallName& waiting, const CallName& awaited) {
    const auto a = place.find(waiting), b = place.find(awaited);
    if (a == place.end() || b == place.end()) return;
    graph.calls[a->second].waits_for.push_back(b->second);
    if (a->second != b->second) graph.calls[b->second].awaited = true;
  };
  for (const auto& call : order) {
    const Sides& sides = call->second;
    if (sides.made != nullptr && sides.made->serving.id != 0) edge(sides.made->serving, call->first);
    if (sides.served != nullptr && sides.served->state == "queued")
      for (const auto& ahead : ahead_of(*sides.served, *sides.callee)) edge(call->first, ahead);
  }
  const std::vector<bool> held = held_up(graph);
  std::set<std::size_t> in_cycles;
  for (std::size_t i = 0; i < graph.calls.size(); ++i) {
    if (!held[i] || in_cycles.contains(i)) continue;
    auto cycle = cycle_through(graph, i);
    if (cycle.empty()) continue;
    in_cycles.insert(cycle.begin(), cycle.end());
    graph.cycles.push_back(std::move(cycle));
  }
  return graph;
}

std::string text_of(const WaitGraph& graph) {
  std::string out;
  std::vector<bool> told(graph.calls.size());
  for (std::size_t i = 0; i < graph.calls.size(); ++i)
    if (!graph.calls[i].awaited) append(out, graph, i, 0, told);
  for (std::size_t i = 0; i < graph.calls.size(); ++i)  // calls that only calls in cycles wait for
    if (!told[i]) append(out, graph, i, 0, told);
  for (const auto& cycle : graph.cycles) {
    out += "\ncycle of " + std::to_string(cycle.size()) + (cycle.size() == 1 ? " call:\n" : " calls:\n");
    for (const std::size_t call : cycle)
      out += "  " + printable(graph.calls[call].name.caller) + "#" +
             std::to_string(graph.calls[call].name.id) + " " + graph.calls[call].text + ", waits for\n";
    out += "  " + printable(graph.calls[cycle.front()].name.caller) + "#" +
           std::to_string(graph.calls[cycle.front()].name.id) + ": a deadlock, if it persists\n";
  }
  return out;
}

PrintedJson json_of(const WaitGraph& graph) {
  PrintedJson calls = PrintedJson::array();
  for (const WaitGraph::Call& call : graph.calls)
    calls.push_back({{"caller", call.name.caller},
                     {"incarnation", call.name.incarnation},
                     {"id", call.name.id},
                     {"text", call.text},
                     {"age", call.age},
                     {"waits_for", call.waits_for}});
  return {{"calls", std::move(calls)}, {"cycles", graph.cycles}};
}

}  // namespace weft::tool
