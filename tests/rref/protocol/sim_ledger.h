// The simulation's agents, and its ledger: which agent holds which object. The ledger is independent of the
// tables that it checks.
//
// This file has the checks that apply at any moment: no object is deleted while an agent holds it, handlers
// run with confirmed forks only, and no fork is refused while its parents are alive.
// protocol_simulation_test.cc has the checks of the quiescent world at the end.
#pragma once

#include <weft/rref/protocol/owner_table.h>
#include <weft/rref/protocol/user_table.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::rref::protocol::sim {

// A handle of the program: a fork of another agent's object, or a hold on an object of the same agent.
struct Handle {
  bool local = false;
  RRefId rref;
  ForkId fork;
};

struct Call {
  enum class Kind : std::uint8_t { create, request, invoke };

  Kind kind = Kind::invoke;
  std::size_t from = 0;
  std::size_t to = 0;
  bool done = false;  // the caller has the result
  bool cut = false;   // the connection is gone, and a reply with it
  bool arrived = false;
  Handover target;             // for create and request
  std::vector<Handover> args;  // invoke
  bool needs_values = false;   // invoke: own objects among the arguments must be alive
};

// A call's handler, before it runs: it waits until each of its RRef arguments is confirmed.
struct Invocation {
  enum class State : std::uint8_t { waiting, good, bad };
  struct Argument {
    Handle handle;
    State state = State::waiting;
    bool held = false;
  };
  std::shared_ptr<Call> call;
  std::vector<Argument> args;
};

struct Node {
  explicit Node(rpc::AgentId agent) : id(agent), owner(agent), user(agent) {}

  rpc::AgentId id;
  bool alive = true;
  OwnerTable owner;
  UserTable user;
  std::set<std::uint64_t> watched;   // incarnations that a table asked to watch
  std::set<std::uint64_t> dead;      // that this agent knows to be dead
  std::set<std::uint64_t> lost;      // owners that its UserTable has lost
  std::set<std::uint64_t> dropped;   // that its OwnerTable dropped
  std::map<ForkId, bool> confirmed;  // forks that were confirmed (true) or failed
  // The ledger.
  std::vector<Handle> handles;
  std::vector<std::shared_ptr<Invocation>> invocations;
  std::vector<std::shared_ptr<Call>> waiting_requests;  // for an object to come alive
  std::multiset<RRefId> serving;                        // requests in progress
};

class Ledger {
 public:
  std::deque<Node> nodes;  // a restarted agent is a new node
  std::vector<std::shared_ptr<Call>> open_calls;
  bool verbose = false;  // print every event, to replay a failing seed
  std::vector<std::string> violations;
  std::map<std::string, std::size_t> seen;  // how often each kind of event came up

  std::size_t number(const Node& node) const { return index_.at(node.id.incarnation); }
  Node& at(const rpc::AgentId& id) { return nodes[index_.at(id.incarnation)]; }
  // Returns whether `owner` and `user` still depend on each other.
  static bool bound(const Node& owner, const Node& user) {
    return owner.alive && user.alive && !owner.dropped.contains(user.id.incarnation) &&
           !user.lost.contains(owner.id.incarnation);
  }
  // Returns whether the owner has a duty to a fork that it may not know yet: this fork and all forks from
  // which it descends are neither fenced nor of a dropped agent. A confirmed fork is owed in any case.
  bool owed(const Node& owner, const Node& user, const ForkId& fork) const {
    auto view = user.user.find(fork);
    if (!view) return true;  // held, but not in the table
    if (view->stage == Stage::ended) return false;
    return view->stage == Stage::confirmed || descends_unbroken(owner, fork);
  }
  void note(const Node& node, const std::string& text) const {
    if (verbose) std::cout << to_string(node.id) << ' ' << text << '\n';
  }
  void violation(std::string text) {
    if (verbose) std::cout << "VIOLATION " << text << '\n';
    if (violations.size() < 5) violations.push_back(std::move(text));
  }
  static std::size_t local_handles(const Node& node, const RRefId& rref) {
    return count_handles(node, [&](const Handle& h) { return h.local && h.rref == rref; });
  }
  static std::size_t fork_handles(const Node& node, const ForkId& fork) {
    return count_handles(node, [&](const Handle& h) { return !h.local && h.fork == fork; });
  }

 protected:
  // The origin of a fork, for forks that users made.
  struct Made {
    std::size_t by = 0;
    std::size_t owner = 0;
    std::optional<ForkId> parent;
    bool fenced = false;
    bool arrived = false;
  };

  void add_node(rpc::AgentId id) {
    index_[id.incarnation] = nodes.size();
    nodes.emplace_back(std::move(id));
  }
  bool descends_unbroken(const Node& owner, const ForkId& fork) const {
    auto made = made_.find(fork);
    if (made == made_.end()) return true;  // lent
    const Node& maker = nodes[made->second.by];
    if (made->second.fenced || owner.dropped.contains(maker.id.incarnation)) return false;
    if (maker.lost.contains(owner.id.incarnation)) return false;
    return !made->second.parent || descends_unbroken(owner, *made->second.parent);
  }

  // An object is not deleted while a user that may depend on the owner holds it.
  void check_deletion(const Node& node, const RRefId& rref) {
    if (local_handles(node, rref) > 0 || node.serving.contains(rref)) {
      violation("object " + to_string(rref) + " was deleted while its owner held it");
    }
    for (const Node& user : nodes) {
      if (!bound(node, user)) continue;
      auto check = [&](const Handle& held) {
        if (held.local || held.rref != rref || !owed(node, user, held.fork)) return;
        violation("object " + to_string(rref) + " was deleted while " + to_string(user.id) + " held " +
                  to_string(held.fork));
      };
      for (const Handle& held : user.handles) check(held);
      for (const auto& invocation : user.invocations) {
        for (const auto& arg : invocation->args) {
          if (arg.held) check(arg.handle);
        }
      }
      for (const auto& call : open_calls) {
        if (call->kind != Call::Kind::request || call->from != number(user)) continue;
        check({false, call->target.rref, call->target.fork});
      }
    }
  }
  void check_run(Node& node, const Invocation& invocation) {
    for (const auto& arg : invocation.args) {
      if (arg.handle.local) continue;
      auto view = node.user.find(arg.handle.fork);
      if (!view) continue;
      Node& owner = at(view->owner);
      if (bound(owner, node) && !owner.owner.has_fork(arg.handle.rref, arg.handle.fork)) {
        violation("a handler ran with fork " + to_string(arg.handle.fork) + " that its owner does not know");
      }
    }
  }

  void check_refusal(Node& node, const ForkId& fork) {
    auto made = made_.find(fork);
    Node& owner = nodes[made == made_.end() ? index_.at(fork.origin) : made->second.owner];
    if (bound(owner, node) && descends_unbroken(owner, fork)) {
      violation("fork " + to_string(fork) + " was refused though its parent lives");
    }
  }

  std::map<ForkId, Made> made_;

 private:
  template <class Matches>
  static std::size_t count_handles(const Node& node, Matches matches) {
    auto count = static_cast<std::size_t>(std::count_if(node.handles.begin(), node.handles.end(), matches));
    for (const auto& invocation : node.invocations) {
      for (const auto& arg : invocation->args) count += arg.held && matches(arg.handle) ? 1 : 0;
    }
    return count;
  }

  std::map<std::uint64_t, std::size_t> index_;  // of a node, by incarnation
};

}  // namespace weft::rref::protocol::sim
