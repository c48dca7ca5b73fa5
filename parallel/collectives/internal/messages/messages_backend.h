// MessagesBackend: collectives as plans of messages (plan/), which the group sends.
//
// PlanCollective: one such collective. hosts/ derives a class from it, for a plan of some of the ranks. As
// thread-safe as Backend and CollectiveInFlight.
#pragma once

#include <weft/parallel/collectives/internal/group/backend.h>
#include <weft/parallel/collectives/internal/messages/plan_transfer.h>
#include <weft/parallel/collectives/plan/internal/choice.h>

namespace weft::collectives {

class WEFT_EXPORT MessagesBackend final : public Backend {
 public:
  // wire: the type in which float32 is sent in reductions (GroupOptions::wire_dtype).
  MessagesBackend(int rank, int ranks, Bounds bounds, std::optional<c10::ScalarType> wire)
      : rank_(rank), ranks_(ranks), bounds_(bounds), wire_(wire) {}

  std::shared_ptr<CollectiveInFlight> make(std::shared_ptr<GroupCollectives> group,
                                           Collective&& collective) override;
  bool writes_early(const Collective& collective) const override;

  // Part: a whole collective, or its part among the ranks of a column. transfer_of(): creates the transfer of
  // that part.
  struct Part {
    int rank, ranks;  // in the plan
    const Layout& layout;
    const PlanMemory& memory;
  };
  std::shared_ptr<PlanTransfer> transfer_of(const Collective& collective, const Part& part,
                                            PlanTransfer::Done done) const;
  // whole(): the whole collective, as a plan of all ranks of the group.
  Part whole(const Collective& collective) const {
    return {rank_, ranks_, collective.layout, collective.memory};
  }

 private:
  Party party_of(const Collective& collective, const Part& part) const;
  std::optional<c10::ScalarType> wire_for(c10::ScalarType dtype, Party party, const Layout& layout) const;

  static constexpr std::uint64_t pool_bytes = 1 << 20;  // the copies of two operations

  const int rank_, ranks_;
  const Bounds bounds_;
  const std::optional<c10::ScalarType> wire_;
  mutable rpc::MemoryPool pool_{pool_bytes};  // for the copies of the transfers
};

class WEFT_EXPORT PlanCollective : public CollectiveInFlight, public Outbox {
 public:
  PlanCollective(std::shared_ptr<GroupCollectives> group, Collective&& arguments,
                 const MessagesBackend& backend)
      : CollectiveInFlight(std::move(group), std::move(arguments)), backend_(backend) {}

  void start(bool inlined) override;
  bool awaits(int rank) override;
  FlightClock::Ticks arrived() const override { return transfer_ == nullptr ? 0 : transfer_->agreed(); }
  void begin() override;
  void deliver(int from, std::uint32_t label, rpc::Buffer bytes) override;
  void close() override;
  void send(int number, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left) override;

 protected:
  // number_of(): the number of a rank in the plan; nullopt: the rank is not in the plan. rank_of(): the rank
  // with that number.
  virtual std::optional<int> number_of(int rank) const { return rank; }
  virtual int rank_of(int number) const { return number; }
  // The part that this rank runs.
  virtual MessagesBackend::Part part() const { return backend_.whole(collective()); }
  // Called once, when the plan has completed without an error.
  virtual void plan_done();

 private:
  PlanTransfer& transfer();

  const MessagesBackend& backend_;
  std::shared_ptr<PlanTransfer> transfer_;  // null: neither started nor waited for
};

}  // namespace weft::collectives
