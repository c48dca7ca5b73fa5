#include <weft/rref/carried.h>

namespace weft::rref {
namespace {

using protocol::Outcome;

Outcome outcome_of(const std::exception_ptr& error) {
  if (error == nullptr) return Outcome::accepted;
  const auto known = rpc::as_error(error);
  return known && known->execution() == rpc::Execution::not_sent ? Outcome::not_sent : Outcome::unknown;
}

std::string joined(const std::vector<std::string>& addresses) {
  std::string all;
  for (const std::string& address : addresses) all += (all.empty() ? "" : " ") + address;
  return all;
}

}  // namespace

std::shared_ptr<Carried> Carried::of(rpc::OutgoingMessage& message, const std::shared_ptr<RRefLayer>& layer) {
  if (auto carried = message.slots().share<Carried>()) return carried;
  auto carried = std::make_shared<Carried>(layer);
  carried->reply_ = message.is_reply();
  message.slots().put(carried);
  message.add_part(carried);
  return carried;
}

Carried::~Carried() {
  if (over_ || (reply_ && sealed_)) return;
  ended(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "the message was dropped",
                                           sealed_ ? rpc::Execution::unknown : rpc::Execution::not_sent)));
}

void Carried::set_target(const ReferencePtr& reference) {
  if (reference->is_owner()) {
    section_.target = protocol::Handover{reference->id(), {}, reference->owner(), reference->owner(), true};
    own_target_ = reference;
    return;
  }
  std::exception_ptr fault;
  {
    rpc::MutexLock lock(layer_->mutex_);
    if (layer_->used_.begin_request(*reference->fork()) == protocol::Fault::none) {
      section_.target = layer_->used_.describe(*reference->fork());
    } else {
      fault = layer_->fault_of(*reference);
    }
  }
  if (fault != nullptr) std::rethrow_exception(fault);
  target_fork_ = reference->fork();
}

void Carried::set_result(const ReferencePtr& reference, const protocol::Handover& handover, std::string site,
                         std::optional<std::string> name) {
  section_.result = handover;
  section_.site = std::move(site);
  section_.name = std::move(name);
  result_ = reference;
}

std::uint64_t Carried::add(rpc::OutgoingMessage& message, const ReferencePtr& reference) {
  const auto& destination = message.destination();
  if (!destination)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "an RRef as an argument: the peer's incarnation is unknown: await peer.ready() first, "
                     "or wait_for() the job");
  message.bind_destination();
  std::uint64_t transit = 0;
  auto handover = layer_->act([&](protocol::Actions& out) -> rpc::Result<protocol::Handover> {
    layer_->mutex_.assume_locked();
    if (*destination == layer_->self_) {
      // Within this agent nothing is handed over: the message names the reference, and the receiver shares
      // it.
      transit = ++layer_->next_transit_;
      layer_->transit_[transit] = reference;
      return protocol::Handover{reference->id(), {}, reference->owner(), {}, true};
    }
    if (!layer_->owned_.is_dropped(*destination)) {
      if (!reference->is_owner()) {
        if (const auto child = layer_->used_.hand_over(*reference->fork(), *destination)) return *child;
        return layer_->fault_of(*reference);
      }
      if (const auto lent = layer_->owned_.lend(reference->id(), *destination, out)) return *lent;
    }
    return std::make_exception_ptr(rpc::Error(rpc::ErrorKind::peer_lost, to_string(*destination) + " is gone",
                                              rpc::Execution::not_sent));
  });
  section_.carried.push_back(std::move(handover).get());
  section_.owner_addresses.push_back(joined(layer_->addresses_of(reference->owner())));
  section_.local.push_back(transit);
  references_.push_back(reference);
  return section_.carried.size() - 1;
}

void Carried::seal(rpc::OutgoingMessage& message) {
  const auto receiver = message.only_destination();
  section_.write(message.section(section_key, true), layer_->self_,
                 receiver != nullptr ? std::optional(*receiver) : std::nullopt);
  notification_ = message.is_notification();
  sealed_ = true;
}

void Carried::ended(const std::exception_ptr& error) {
  if (std::exchange(over_, true)) return;
  const Outcome outcome = outcome_of(error);
  const bool undecided = notification_ && error == nullptr;  // it was sent; its further fate is unknown
  std::vector<ReferencePtr> unclaimed;                       // like `made`, released outside the mutex
  const ReferencePtr made = result_.lock();
  bool never_began = false;  // a creation on this agent itself, which nothing else ends in this case
  layer_->act([&](protocol::Actions& out) {
    layer_->mutex_.assume_locked();
    if (layer_->ended_) return;
    for (std::size_t i = 0; i < section_.carried.size() && !undecided; ++i) {
      const protocol::Handover& handover = section_.carried[i];
      if (section_.local[i] != 0) {
        if (auto node = layer_->transit_.extract(section_.local[i]))
          unclaimed.push_back(std::move(node.mapped()));
      } else if (references_[i]->is_owner()) {
        layer_->owned_.lend_ended(handover, outcome, out);
      } else {
        layer_->used_.hand_over_ended(handover.fork, outcome, out);
      }
    }
    never_began =
        outcome == Outcome::not_sent && section_.result && layer_->unbegun_.erase(section_.result->rref) != 0;
    if (made != nullptr && error != nullptr && rpc::is_remote(error)) made->about()->refusal = error;
    if (section_.result && section_.result->owner != layer_->self_)
      layer_->used_.create_ended(section_.result->fork, outcome, out);
    if (target_fork_) layer_->used_.end_request(*target_fork_, out);
  });
  if (never_began) layer_->finish_creation(section_.result->rref, error);
  own_target_ = nullptr;
  references_.clear();
}

}  // namespace weft::rref
