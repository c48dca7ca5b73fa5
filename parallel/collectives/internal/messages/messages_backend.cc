#include <weft/parallel/collectives/internal/messages/messages_backend.h>

#include <weft/parallel/collectives/internal/group/group_collectives.h>

#include <algorithm>
#include <string>

namespace weft::collectives {

std::shared_ptr<CollectiveInFlight> MessagesBackend::make(std::shared_ptr<GroupCollectives> group,
                                                          Collective&& collective) {
  return std::make_shared<PlanCollective>(std::move(group), std::move(collective), *this);
}

bool MessagesBackend::writes_early(const Collective& collective) const {
  return collective.layout.operation == Operation::all_reduce &&
         agrees_by_itself(party_of(collective, whole(collective)), collective.layout.elements);
}

Party MessagesBackend::party_of(const Collective& collective, const Part& part) const {
  return {part.rank, part.ranks,
          collective.reduction ? collective.reduction->accumulator_size() : part.memory.item_size, bounds_};
}

std::shared_ptr<PlanTransfer> MessagesBackend::transfer_of(const Collective& collective, const Part& part,
                                                           PlanTransfer::Done done) const {
  const Party party = party_of(collective, part);
  return std::make_shared<PlanTransfer>(
      party.rank, party.ranks, plan_of(party, part.layout), part.memory, collective.reduction,
      std::move(done), wire_for(collective.signature.dtype, party, part.layout), ranks_, &pool_);
}

// Small tensors are sent unchanged: two ranks exchange their halves of such a tensor, and would have
// different bits. Accumulators of 16-bit tensors are sent in the tensors' type, so that both kinds of
// messages have the same form.
std::optional<c10::ScalarType> MessagesBackend::wire_for(c10::ScalarType dtype, Party party,
                                                         const Layout& layout) const {
  if (!wire_ || layout.operation != Operation::all_reduce || agrees_by_itself(party, layout.elements))
    return std::nullopt;
  switch (dtype) {
    case c10::ScalarType::Float:
      return wire_;
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
      return dtype;
    default:
      return std::nullopt;
  }
}

// --- One collective ---

void PlanCollective::start(bool inlined) { group().begin(shared_from_this(), inlined); }

void PlanCollective::plan_done() { group().done(shared_from_this()); }

PlanTransfer& PlanCollective::transfer() {
  if (transfer_ == nullptr)
    transfer_ = backend_.transfer_of(
        collective(), part(), [weak = weak_from_this()](const std::exception_ptr& error) {
          const auto self = std::static_pointer_cast<PlanCollective>(weak.lock());
          if (self == nullptr || self->closed()) return;
          error == nullptr ? self->plan_done() : self->group().failed(self, error);
        });
  return *transfer_;
}

void PlanCollective::begin() {
  if (!closed()) transfer().begin(*this);
}

void PlanCollective::deliver(int from, std::uint32_t label, rpc::Buffer bytes) {
  if (const auto number = number_of(from)) return transfer().deliver(*number, label, std::move(bytes));
  group().failed(shared_from_this(),
                 std::make_exception_ptr(rpc::Error(
                     rpc::ErrorKind::protocol_error,
                     "rank " + std::to_string(from) +
                         " sent a message, expected only messages of ranks in this rank's column")));
}

void PlanCollective::close() {
  CollectiveInFlight::close();
  if (transfer_ != nullptr)
    transfer_->fail(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "the collective has ended")));
}

void PlanCollective::send(int number, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left) {
  group().send(shared_from_this(), rank_of(number), label, bytes, std::move(left));
}

bool PlanCollective::awaits(int rank) {
  const std::vector<int> awaited = transfer().awaited();
  const auto number =
      number_of(rank);  // a rank that is not in the plan cannot have completed before this one
  return !number || std::find(awaited.begin(), awaited.end(), *number) != awaited.end();
}

}  // namespace weft::collectives
