#include <weft/parallel/collectives/internal/messages/messages_backend.h>

#include <algorithm>
#include <string>

namespace weft::collectives {

ExchangePtr MessagesBackend::make(std::shared_ptr<BackendOwner> owner, Collective&& collective) {
  return std::make_shared<PlanExchange>(std::move(owner), std::move(collective), *this);
}

bool MessagesBackend::writes_early(const Collective& collective) const {
  return collective.layout.operation == Operation::all_reduce &&
         agrees_by_itself(party_of(collective, whole(collective)), collective.layout.elements);
}

Party MessagesBackend::party_of(const Collective& collective, const Part& part) const {
  return {part.rank, part.ranks,
          collective.reduction ? collective.reduction->accumulator_size() : part.memory.item_size, bounds_};
}

std::shared_ptr<PlanRun> MessagesBackend::run_of(const Collective& collective, const Part& part,
                                                 PlanRun::Done done) const {
  const Party party = party_of(collective, part);
  return std::make_shared<PlanRun>(party.rank, party.ranks, plan_of(party, part.layout), part.memory,
                                   collective.reduction, std::move(done),
                                   wire_for(collective.signature.dtype, party, part.layout), ranks_, &pool_);
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

PlanRun& PlanExchange::run() {
  if (run_ == nullptr)
    run_ = backend_.run_of(collective, part(), [weak = weak_from_this()](const std::exception_ptr& error) {
      const auto self = std::static_pointer_cast<PlanExchange>(weak.lock());
      if (self == nullptr || self->closed) return;
      error == nullptr ? self->plan_done() : self->owner->failed(self, error);
    });
  return *run_;
}

void PlanExchange::begin() {
  if (!closed) run().begin(*this);
}

void PlanExchange::deliver(int from, std::uint32_t label, rpc::Buffer bytes) {
  if (const auto number = number_of(from)) return run().deliver(*number, label, std::move(bytes));
  owner->failed(shared_from_this(),
                std::make_exception_ptr(rpc::Error(
                    rpc::ErrorKind::protocol_error,
                    "rank " + std::to_string(from) +
                        " sent a message, expected only messages of ranks in this rank's column")));
}

void PlanExchange::close() {
  Exchange::close();
  if (run_ != nullptr)
    run_->fail(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "the collective has ended")));
}

void PlanExchange::send(int number, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left) {
  owner->send_part(shared_from_this(), rank_of(number), label, bytes, std::move(left));
}

bool PlanExchange::awaits(int rank) {
  if (disagrees) return !signatures.contains(rank);
  const std::vector<int> awaited = run().awaited();
  const auto number =
      number_of(rank);  // a rank that is not in the plan cannot have completed before this one
  return !number || std::find(awaited.begin(), awaited.end(), *number) != awaited.end();
}

}  // namespace weft::collectives
