// The simulation's layer above the tables: it carries their actions out over the simulated network, and makes
// the calls of a program. It does what docs/internals/rref_protocol.md asks of that layer ("Duties of the
// layer above"); `Sabotage` leaves one duty undone at a time, to see that the ledger's checks notice.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tests/rref/protocol/sim_ledger.h"
#include "tests/rref/protocol/sim_network.h"

namespace weft::rref::protocol::sim {

enum class Sabotage : std::uint8_t {
  none,
  forget_delete,         // the owner is not told of a release
  release_parent_early,  // a parent does not wait for its child
  run_early,             // a handler does not wait for confirmations
  no_request_hold,       // a request does not hold its fork
  forget_death,          // the owner is not told of a user's death
  forget_probe,          // the owner does not ask for lends after a reconnection
  forget_settled,        // a parent is not told that its child is settled
};

class World : public Ledger {
 public:
  World(std::uint64_t seed, std::size_t agents, Sabotage sabotage = Sabotage::none)
      : random(seed), network(random), sabotage_(sabotage) {
    for (std::size_t i = 0; i < agents; ++i) start("worker" + std::to_string(i));
  }

  Random random;
  Network network;

  // --- Operations of a program ---
  void start(std::string name) { add_node(rpc::AgentId{std::move(name), random.next()}); }
  void create_local(Node& node) {
    node.handles.push_back({true, node.owner.create_local({"Thing", "simulation"}), {}});
  }
  void create(Node& node, Node& owner) {
    Actions out;
    auto target = node.user.create(owner.id, out);
    apply(node, out);
    if (!target) return;
    made_[target->fork] = {number(node), number(owner), std::nullopt};
    note(node, "creates " + to_string(target->rref) + " at " + to_string(owner.id));
    node.handles.push_back({false, target->rref, target->fork});
    auto call = open(Call::Kind::create, node, owner);
    call->target = *target;
    transmit(call);
  }
  void request(Node& node, std::size_t handle) {
    const Handle used = node.handles[handle];
    if (used.local || node.user.begin_request(used.fork) != Fault::none) return;
    const Handover target = node.user.describe(used.fork);
    auto call = open(Call::Kind::request, node, at(target.owner));
    call->target = target;
    if (sabotage_ == Sabotage::no_request_hold)
      event(node, [&](Actions& out) { node.user.end_request(used.fork, out); });
    transmit(call);
  }
  void invoke(Node& node, Node& callee, const std::vector<std::size_t>& handles) {
    auto call = open(Call::Kind::invoke, node, callee);
    call->needs_values = random.chance(30);
    for (std::size_t handle : handles) {
      if (auto passed = pass(node, node.handles[handle], callee)) call->args.push_back(*passed);
    }
    transmit(call);
  }
  void copy_handle(Node& node, std::size_t handle) {
    const Handle copied = node.handles[handle];
    if (copied.local) {
      node.owner.hold(copied.rref);
    } else {
      node.user.retain(copied.fork);
    }
    node.handles.push_back(copied);
  }
  void drop_handle(Node& node, std::size_t handle) {
    const Handle dropped = node.handles[handle];
    node.handles.erase(node.handles.begin() + static_cast<std::ptrdiff_t>(handle));
    let_go(node, dropped);
  }
  void give_up(std::size_t open_call) {
    const auto call = open_calls[open_call];
    finish(call, Outcome::unknown);
  }

  // --- Faults of a node ---
  void kill(Node& node) {
    node.alive = false;
    node.handles.clear();
    node.invocations.clear();
    std::erase_if(open_calls, [&](const auto& call) { return call->from == number(node); });
    note(node, "dies");
  }
  // `node` learns that `dead` is dead. Its connection breaks. It notifies its tables only if they watch
  // `dead`.
  void announce_death(Node& node, Node& dead) {
    if (!node.dead.insert(dead.id.incarnation).second) return;
    break_connection(node, dead);
    if (node.watched.contains(dead.id.incarnation)) report_death(node, dead);
  }
  void announce_all_deaths() {
    for (Node& dead : nodes) {
      if (dead.alive) continue;
      for (Node& node : nodes) {
        if (node.alive) announce_death(node, dead);
      }
    }
  }
  void expire_lease(Node& owner, Node& user) {
    note(owner, "drops " + to_string(user.id));
    owner.dropped.insert(user.id.incarnation);
    event(owner, [&](Actions& out) { owner.owner.drop_agent(user.id, out); });
  }
  // `user` wrongly takes `owner` for dead: it stops renewing its lease, which therefore ends in time.
  void suspect(Node& user, Node& owner) {
    if (!user.lost.insert(owner.id.incarnation).second) return;
    note(user, "takes for dead " + to_string(owner.id));
    event(user, [&](Actions& out) { user.user.agent_lost(owner.id, out); });
    break_connection(user, owner);
    if (owner.watched.contains(user.id.incarnation)) later_expiry(owner, user);
  }
  void break_connection(Node& a, Node& b) {
    const std::size_t i = number(a), j = number(b);
    note(a, "loses its connection to " + to_string(b.id));
    std::vector<Frame> taken = network.cut(i, j);
    const bool calls_first = random.chance(50);
    if (calls_first) end_calls(i, j);
    for (Node* node : {&a, &b}) {
      const rpc::AgentId& peer = (node == &a ? b : a).id;
      if (!node->alive) continue;
      event(*node, [&](Actions& out) { node->user.connection_ended(peer, out); });
      if (sabotage_ == Sabotage::forget_probe) continue;
      event(*node, [&](Actions& out) { node->owner.connection_ended(peer, out); });
    }
    if (!calls_first) end_calls(i, j);
    for (Frame& frame : taken) {
      if (frame.lost) frame.lost();
    }
  }
  void step() {
    network.step([this](std::size_t node) { return nodes[node].alive; });
  }

 private:
  // --- Calls ---
  std::shared_ptr<Call> open(Call::Kind kind, Node& from, Node& to) {
    auto call = std::make_shared<Call>();
    call->kind = kind;
    call->from = number(from);
    call->to = number(to);
    open_calls.push_back(call);
    return call;
  }
  void transmit(const std::shared_ptr<Call>& call) {
    if (network.faulty && random.chance(8)) return finish(call, Outcome::not_sent);
    if (knows_dead(call->from, call->to)) return finish(call, Outcome::not_sent);
    const bool alone =
        call->kind == Call::Kind::request;  // the tables rely on the call layer not to repeat requests
    network.push(
        {Frame::Kind::program, call->from, call->to, [this, call] { arrive(call); }, {}, call, alone});
  }
  void finish(const std::shared_ptr<Call>& call, Outcome outcome) {
    if (call->done) return;
    call->done = true;
    std::erase(open_calls, call);
    Node& node = nodes[call->from];
    if (!node.alive) return;
    event(node, [&](Actions& out) {
      if (call->kind == Call::Kind::create) return node.user.create_ended(call->target.fork, outcome, out);
      if (call->kind == Call::Kind::request) {
        if (sabotage_ != Sabotage::no_request_hold) node.user.end_request(call->target.fork, out);
        return;
      }
      for (const Handover& arg : call->args) end_hand_over(node, arg, outcome, out);
    });
  }
  void end_hand_over(Node& node, const Handover& handover, Outcome outcome, Actions& out) {
    note(node, "ends the hand-over of " + to_string(handover.fork) + ": " +
                   std::to_string(static_cast<int>(outcome)));
    if (handover.owner == node.id) {
      node.owner.lend_ended(handover, outcome, out);
    } else {
      node.user.hand_over_ended(handover.fork, outcome, out);
    }
  }
  void end_calls(std::size_t a, std::size_t b) {
    const auto calls = open_calls;
    for (const auto& call : calls) {
      if (!(call->from == a && call->to == b) && !(call->from == b && call->to == a)) continue;
      call->cut = true;
      finish(call, Outcome::unknown);
    }
  }
  void arrive(const std::shared_ptr<Call>& call) {
    Node& node = nodes[call->to];
    if (call->kind == Call::Kind::create) return arrive_create(node, call);
    if (call->kind == Call::Kind::request) return arrive_request(node, call);
    if (random.chance(5)) return reply(call, false, {});  // refused unread
    auto invocation = std::make_shared<Invocation>();
    invocation->call = call;
    for (const Handover& arg : call->args) {
      invocation->args.push_back(take(node, nodes[call->from], arg, call->needs_values));
    }
    node.invocations.push_back(invocation);
    for (auto& arg : invocation->args) look_up(node, arg);
    try_run(node, invocation);
  }
  void arrive_create(Node& node, const std::shared_ptr<Call>& call) {
    const rpc::AgentId& creator = nodes[call->from].id;
    note(node, "gets the creation of " + to_string(call->target.rref));
    const RRefId rref = call->target.rref;
    Standing standing;
    event(node, [&](Actions& out) { standing = node.owner.begin_create(creator, rref, {"Thing", ""}, out); });
    if (standing.verdict != Verdict::registered) {
      ++seen["creation refused"];
      return reply(call, false, {});
    }
    after(node, [this, &node, call, rref] {
      const bool fails = random.chance(15);
      event(node, [&](Actions& out) {
        node.owner.finish_create(rref, fails ? std::optional<std::string>("thrown") : std::nullopt, out);
      });
      reply(call, !fails, {});
    });
  }
  void arrive_request(Node& node, const std::shared_ptr<Call>& call) {
    Node& caller = nodes[call->from];
    Access access{};
    event(node, [&](Actions& out) { access = node.owner.begin_request(caller.id, call->target, out); });
    saw(access);
    if (access == Access::ready) return serve(node, call);
    if (access == Access::waiting) return node.waiting_requests.push_back(call);
    if (access != Access::failed && !call->done && bound(node, caller) &&
        owed(node, caller, call->target.fork)) {
      violation("a request through fork " + to_string(call->target.fork) + " found its object gone");
    }
    const bool lease_lost = access == Access::lease_lost;
    program_frame(call, [this, call, lease_lost, &node, &caller] {
      if (lease_lost) {
        caller.lost.insert(node.id.incarnation);
        event(caller, [&](Actions& out) { caller.user.lease_lost(node.id, out); });
      }
      finish(call, Outcome::unknown);
    });
  }
  void serve(Node& node, const std::shared_ptr<Call>& call) {
    node.serving.insert(call->target.rref);
    after(node, [this, &node, call] {
      node.serving.erase(node.serving.find(call->target.rref));
      event(node, [&](Actions& out) { node.owner.unhold(call->target.rref, out); });
      reply(call, true, {});
    });
  }
  void reply(const std::shared_ptr<Call>& call, bool ok, std::vector<Handover> results) {
    if (!can_reply(*call)) {
      return event(nodes[call->to], [&](Actions& out) {
        for (const Handover& result : results) end_hand_over(nodes[call->to], result, Outcome::not_sent, out);
      });
    }
    program_frame(call, [this, call, ok, results = std::move(results)] {
      Node& node = nodes[call->from];
      for (const Handover& result : results) {
        auto arg = take(node, nodes[call->to], result, false);
        if (!arg.held) continue;
        node.handles.push_back(arg.handle);
        if (!call->done) continue;
        ++seen["late reply with an RRef"];  // the caller has given up: the reply is accepted and released
        drop_handle(node, node.handles.size() - 1);
      }
      finish(call, ok ? Outcome::accepted : Outcome::unknown);
    });
  }
  void program_frame(const std::shared_ptr<Call>& call, std::function<void()> deliver) {
    if (!can_reply(*call)) return;
    network.push({Frame::Kind::program, call->to, call->from, std::move(deliver), {}, call, false});
  }

  bool can_reply(const Call& call) const { return !call.cut && !knows_dead(call.to, call.from); }
  bool knows_dead(std::size_t node, std::size_t other) const {
    return nodes[node].dead.contains(nodes[other].id.incarnation);
  }

  // --- Hand-overs ---
  std::optional<Handover> pass(Node& node, const Handle& handle, Node& to) {
    if (handle.local) {
      std::optional<Handover> lent;
      event(node, [&](Actions& out) { lent = node.owner.lend(handle.rref, to.id, out); });
      if (lent) note(node, "lends " + to_string(lent->fork) + " to " + to_string(to.id));
      return lent;
    }
    auto child = node.user.hand_over(handle.fork, to.id);
    if (!child) return child;
    made_[child->fork] = {number(node), number(at(child->owner)), handle.fork};
    note(node,
         "hands " + to_string(handle.fork) + " as " + to_string(child->fork) + " to " + to_string(to.id));
    if (sabotage_ == Sabotage::release_parent_early) {
      event(node, [&](Actions& out) { node.user.hand_over_ended(child->fork, Outcome::accepted, out); });
    }
    return child;
  }
  Invocation::Argument take(Node& node, Node& from, const Handover& handover, bool needs_value) {
    using State = Invocation::State;
    note(node, "receives " + to_string(handover.fork) + " of object " + to_string(handover.rref));
    if (handover.owner != node.id) {
      Fault fault{};
      // A repeated frame may bring a fork again after its end. It then has a second incarnation,
      // which the owner refuses.
      const bool again = !node.user.find(handover.fork) && node.confirmed.erase(handover.fork) > 0;
      if (again && made_.contains(handover.fork)) made_.at(handover.fork).fenced = true;
      event(node, [&](Actions& out) { fault = node.user.receive(from.id, handover, out); });
      const bool ok = fault == Fault::none;
      return {{false, handover.rref, handover.fork}, ok ? State::waiting : State::bad, ok};
    }
    Access access{};
    event(node, [&](Actions& out) { access = node.owner.receive(from.id, handover, out); });
    saw(access);
    if (auto made = made_.find(handover.fork);
        made != made_.end() && !std::exchange(made->second.arrived, true)) {
      if (access == Access::gone && bound(node, from) && descends_unbroken(node, handover.fork)) {
        violation("fork " + to_string(handover.fork) + " came to its owner and was refused");
      }
    }
    const bool held = access == Access::ready || access == Access::waiting;
    const bool good = access == Access::ready || (access == Access::waiting && !needs_value);
    return {{true, handover.rref, {}}, good ? State::good : held ? State::waiting : State::bad, held};
  }
  // A fork may have been confirmed, or have failed, before its handler began to wait.
  void look_up(Node& node, Invocation::Argument& arg) {
    if (arg.handle.local || arg.state != Invocation::State::waiting) return;
    auto seen = node.confirmed.find(arg.handle.fork);
    if (seen == node.confirmed.end()) return;
    arg.state = seen->second ? Invocation::State::good : Invocation::State::bad;
  }
  template <class Matches>
  void wake(Node& node, bool good, Matches matches) {
    const auto invocations = node.invocations;
    for (const auto& invocation : invocations) {
      for (auto& arg : invocation->args) {
        if (arg.state != Invocation::State::waiting || !matches(arg.handle)) continue;
        arg.state = good ? Invocation::State::good : Invocation::State::bad;
      }
      try_run(node, invocation);
    }
  }
  void try_run(Node& node, const std::shared_ptr<Invocation>& invocation) {
    using State = Invocation::State;
    auto place = std::find(node.invocations.begin(), node.invocations.end(), invocation);
    if (place == node.invocations.end()) return;
    bool good = true;
    for (const auto& arg : invocation->args) {
      if (arg.state == State::waiting && sabotage_ != Sabotage::run_early) return;
      good = good && arg.state != State::bad;
    }
    node.invocations.erase(place);
    ++seen[good ? "handler ran" : "handler refused"];
    if (good) check_run(node, *invocation);
    const bool keeps = good && random.chance(60);
    for (const auto& arg : invocation->args) {
      if (arg.held) node.handles.push_back(arg.handle);
    }
    std::vector<Handover> results;
    if (good && !node.handles.empty() && random.chance(40)) {
      const Handle result = node.handles[random.below(node.handles.size())];
      if (auto passed = pass(node, result, nodes[invocation->call->from])) results.push_back(*passed);
    }
    for (const auto& arg : invocation->args) {
      if (!arg.held || keeps) continue;
      drop_handle(node, find_handle(node, arg.handle));
    }
    reply(invocation->call, good, std::move(results));
  }
  static std::size_t find_handle(const Node& node, const Handle& handle) {
    auto place = std::find_if(node.handles.begin(), node.handles.end(), [&](const Handle& h) {
      return h.local == handle.local && h.rref == handle.rref && h.fork == handle.fork;
    });
    return static_cast<std::size_t>(place - node.handles.begin());
  }
  void let_go(Node& node, const Handle& handle) {
    note(node, "lets go " + (handle.local ? to_string(handle.rref) : to_string(handle.fork)));
    event(node, [&](Actions& out) {
      if (handle.local) {
        node.owner.unhold(handle.rref, out);
      } else {
        node.user.release(handle.fork, out);
      }
    });
  }
  // --- Actions ---
  template <class Event>
  void event(Node& node, Event run) {
    Actions out;
    run(out);
    apply(node, out);
  }
  void after(Node& node, std::function<void()> then) {
    network.push({Frame::Kind::local, number(node), number(node), std::move(then), {}, {}, true});
  }
  void apply(Node& node, const Actions& actions) {
    for (const Action& action : actions) {
      std::visit([&](const auto& chosen) { act(node, chosen); }, action);
    }
  }
  template <class Message>
  void act(Node& node, const Send<Message>& send) {
    if constexpr (std::is_same_v<Message, ForkDelete>) {
      if (sabotage_ == Sabotage::forget_delete) {
        return event(node, [&](Actions& out) {
          node.user.answered(send.to, send.message, {Verdict::ended, {}}, out);
        });
      }
    }
    if constexpr (std::is_same_v<Message, ChildSettled>) {
      if (sabotage_ == Sabotage::forget_settled) return;
    }
    ++seen[name_of(send.message)];
    note(node, std::string("sends ") + name_of(send.message) + ' ' + to_string(send.message.fork) + " to " +
                   to_string(send.to));
    send_message(number(node), number(at(send.to)), send.message);
  }
  void act(Node& node, const ForkConfirmed& action) {
    note(node, "has confirmed " + to_string(action.fork));
    if (!node.confirmed.emplace(action.fork, true).second)
      violation("a fork was confirmed twice, or after it failed");
    wake(node, true, [&](const Handle& h) { return !h.local && h.fork == action.fork; });
  }
  void act(Node& node, const ForkFailed& action) {
    static constexpr const char* kFaults[] = {"", "creation_failed", "refused", "owner_lost", "lease_lost"};
    ++seen[std::string("failed: ") + kFaults[static_cast<std::size_t>(action.fault)]];
    note(node, "has failed " + to_string(action.fork) + ": " + action.text);
    auto [seen, first] = node.confirmed.emplace(action.fork, false);
    if (!first && !seen->second) violation("a fork failed twice");
    seen->second = false;
    if (action.fault == Fault::refused) check_refusal(node, action.fork);
    wake(node, false, [&](const Handle& h) { return !h.local && h.fork == action.fork; });
  }
  void saw(Access access) {
    static constexpr const char* kNames[] = {"ready", "waiting", "failed", "gone", "lease_lost"};
    ++seen[std::string("access: ") + kNames[static_cast<std::size_t>(access)]];
  }
  void act(Node& node, const ObjectReady& action) {
    ++seen["ObjectReady"];
    for (const auto& call : take_waiting(node, action.rref)) serve(node, call);
    wake(node, true, [&](const Handle& h) { return h.local && h.rref == action.rref; });
  }
  void act(Node& node, const ObjectFailed& action) {
    ++seen["ObjectFailed"];
    for (const auto& call : take_waiting(node, action.rref)) {
      event(node, [&](Actions& out) { node.owner.unhold(call->target.rref, out); });
      reply(call, false, {});
    }
    wake(node, false, [&](const Handle& h) { return h.local && h.rref == action.rref; });
  }
  static std::vector<std::shared_ptr<Call>> take_waiting(Node& node, const RRefId& rref) {
    std::vector<std::shared_ptr<Call>> taken;
    for (const auto& call : node.waiting_requests) {
      if (call->target.rref == rref) taken.push_back(call);
    }
    std::erase_if(node.waiting_requests, [&](const auto& call) { return call->target.rref == rref; });
    return taken;
  }
  void act(Node& node, const DeleteObject& action) {
    note(node, "deletes " + to_string(action.rref));
    check_deletion(node, action.rref);
  }
  void act(Node& node, const WatchAgent& action) {
    Node& peer = at(action.agent);
    node.watched.insert(peer.id.incarnation);
    // Watching an agent that is already known to be dead reports its death.
    if (node.dead.contains(peer.id.incarnation)) {
      after(node, [this, &node, &peer] { report_death(node, peer); });
    } else if (peer.alive && peer.lost.contains(node.id.incarnation)) {
      later_expiry(node, peer);
    }
  }
  void report_death(Node& node, Node& dead) {
    node.lost.insert(dead.id.incarnation);
    event(node, [&](Actions& out) { node.user.agent_lost(dead.id, out); });
    if (sabotage_ != Sabotage::forget_death) expire_lease(node, dead);
  }
  void later_expiry(Node& owner, Node& user) {
    after(owner, [this, &owner, &user] { expire_lease(owner, user); });
  }

  // --- Messages ---
  // A message is repeated until it is answered, or its sender takes the receiver for dead.
  template <class Message>
  void send_message(std::size_t from, std::size_t to, const Message& message) {
    if (stops_sending<Message>(from, to)) return;
    Frame frame{Frame::Kind::protocol, from, to, {}, {}, {}, false};
    auto again = [this, from, to, message] {
      if (!nodes[from].alive) return;
      after_loss(from, to, message);
    };
    frame.lost = again;
    frame.deliver = [this, from, to, message, again] {
      Frame answer{
          Frame::Kind::protocol, to, from, respond(nodes[to], nodes[from], message), again, {}, false};
      network.push(std::move(answer));
    };
    network.push(std::move(frame));
  }
  template <class Message>
  bool stops_sending(std::size_t from, std::size_t to) const {
    constexpr bool to_owner = std::is_same_v<Message, ForkAdd> || std::is_same_v<Message, ForkDelete> ||
                              std::is_same_v<Message, ForkFence>;
    return knows_dead(from, to) || (to_owner && nodes[from].lost.contains(nodes[to].id.incarnation));
  }
  template <class Message>
  void after_loss(std::size_t from, std::size_t to, const Message& message) {
    if (stops_sending<Message>(from, to)) return;
    network.push_later({Frame::Kind::local,
                        from,
                        from,
                        [this, from, to, message] { send_message(from, to, message); },
                        {},
                        {},
                        true});
  }
  static const char* name_of(const ForkAdd&) { return "ForkAdd"; }
  static const char* name_of(const ForkDelete&) { return "ForkDelete"; }
  static const char* name_of(const ForkFence&) { return "ForkFence"; }
  static const char* name_of(const ForkProbe&) { return "ForkProbe"; }
  static const char* name_of(const ChildSettled&) { return "ChildSettled"; }
  static const char* name_of(const CreationFailed&) { return "CreationFailed"; }
  template <class Message>
  std::function<void()> respond(Node& node, Node& from, const Message& message) {
    note(node, std::string("gets ") + name_of(message) + ' ' + to_string(message.fork));
    std::function<void()> back = [] {};
    event(node, [&](Actions& out) {
      if constexpr (std::is_same_v<Message, ForkAdd>) {
        back = answer(from, node, message, node.owner.on_fork_add(from.id, message, out));
      } else if constexpr (std::is_same_v<Message, ForkDelete>) {
        back = answer(from, node, message, node.owner.on_fork_delete(from.id, message, out));
      } else if constexpr (std::is_same_v<Message, ForkFence>) {
        const Standing standing = node.owner.on_fork_fence(from.id, message, out);
        if (standing.verdict == Verdict::ended) made_.at(message.fork).fenced = true;
        back = answer(from, node, message, standing);
      } else if constexpr (std::is_same_v<Message, ForkProbe>) {
        const ProbeReply reply = node.user.on_fork_probe(from.id, message, out);
        ++seen[reply.held ? "probe held" : "probe not held"];
        back = [this, &from, message, reply] {
          event(from, [&](Actions& more) { from.owner.probe_answered(message, reply, more); });
        };
      } else if constexpr (std::is_same_v<Message, ChildSettled>) {
        node.user.on_child_settled(from.id, message, out);
      } else {
        node.user.on_creation_failed(from.id, message, out);
      }
    });
    return back;
  }
  template <class Message>
  std::function<void()> answer(Node& sender, Node& owner, const Message& message, const Standing& standing) {
    static constexpr const char* kVerdicts[] = {" registered", " ended", " lease_lost"};
    ++seen[std::string(name_of(message)) + kVerdicts[static_cast<std::size_t>(standing.verdict)]];
    if (!standing.creation_failure.empty()) ++seen[std::string(name_of(message)) + " creation failed"];
    return [this, &sender, &owner, message, standing] {
      if (standing.verdict == Verdict::lease_lost) sender.lost.insert(owner.id.incarnation);
      event(sender, [&](Actions& out) { sender.user.answered(owner.id, message, standing, out); });
    };
  }

  const Sabotage sabotage_;
};

}  // namespace weft::rref::protocol::sim
