// PlanTransfer: executes one rank's plan on real memory, as messages arrive and are sent.
//
// Independent of transport and threads: an Outbox sends the messages, and the owner passes arriving messages
// to deliver(), in any order, also before begin(). A step runs as soon as the steps that it waits for have
// completed; a message that arrives earlier is kept. A transfer completes once, with success or with the
// first error; its owner can end it with fail(). The jobs that the outbox holds keep the transfer and its
// memory alive. Thread-safety: one call at a time, including the outbox's jobs.
#pragma once

#include <weft/parallel/collectives/flight/flight_clock.h>
#include <weft/parallel/collectives/operation/internal/reduction.h>
#include <weft/parallel/collectives/plan/internal/layout.h>
#include <weft/parallel/collectives/plan/internal/plan.h>
#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/memory_pool.h>
#include <weft/rpc/core/unique_function.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <span>

namespace weft::collectives {

class WEFT_EXPORT Outbox {
 public:
  virtual ~Outbox() = default;
  // The bytes must not change until `left` has run or is destroyed, which may happen within send().
  virtual void send(int to, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left) = 0;
};

class WEFT_EXPORT PlanTransfer final : public std::enable_shared_from_this<PlanTransfer> {
 public:
  using Done = rpc::UniqueFunction<void(std::exception_ptr)>;  // null: success

  // reduction: for plans that reduce. wire: a 16-bit floating-point type in which elements and accumulators
  // of float32 are sent; results are rounded to it, so that they are equal on all ranks. divisor: the divisor
  // of averages, if the operands combine the values of more than `ranks` ranks; 0: `ranks`. pool: memory for
  // the copies that the transfer sends; null: fresh memory.
  PlanTransfer(int rank, int ranks, Plan plan, PlanMemory memory, std::optional<Reduction> reduction,
               Done done, std::optional<c10::ScalarType> wire = {}, int divisor = 0,
               rpc::MemoryPool* pool = nullptr);

  void begin(Outbox& outbox);
  // protocol_error ends the transfer if no step expects the message, or if its size is wrong.
  void deliver(int from, std::uint32_t label, rpc::Buffer bytes);
  // Ends the transfer with that error, unless it has ended.
  void fail(std::exception_ptr error);

  // When the steps of Plan::agreement had completed; 0: they have not, or the plan has none.
  FlightClock::Ticks agreed() const { return agreed_; }
  // Whether `done` has been called.
  bool ended() const { return !done_; }
  // The ranks from which the transfer still expects a message, in ascending order.
  std::vector<int> awaited() const;

 private:
  struct Progress {
    std::size_t waits_for = 0;
    bool copies = false;  // a send that completes at once, because it sends a copy of the bytes
    std::vector<std::uint32_t> dependents;
  };
  using Letter = std::pair<int, std::uint32_t>;  // peer, label

  void choose_copies();
  void may_run(std::uint32_t index);
  void run_ready();
  void start(std::uint32_t index);
  bool take(const Step& step, const rpc::Buffer& message);
  bool is_compressed(Place place) const { return wire_ && size_of(place) == sizeof(float); }
  rpc::Buffer allocate(std::size_t bytes) const;
  rpc::Buffer compressed(const std::byte* floats, std::size_t n) const;
  rpc::Buffer expanded(const rpc::Buffer& message, std::size_t n) const;
  void over(std::uint32_t index);
  std::byte* at(Place place, std::size_t element) const;
  std::size_t size_of(Place place) const;  // bytes of an element
  void end(std::exception_ptr error);

  const int rank_, divisor_;
  const Plan plan_;
  PlanMemory memory_;
  const std::optional<Reduction> reduction_;
  const std::optional<c10::ScalarType> wire_;
  rpc::MemoryPool* const pool_;
  rpc::Buffer own_accumulator_;
  Done done_;
  Outbox* outbox_ = nullptr;
  std::vector<Progress> progress_;
  std::size_t left_;
  std::size_t agreement_left_;
  FlightClock::Ticks agreed_ = 0;
  std::map<Letter, std::uint32_t> expected_;  // the steps that receive messages and have not run yet
  std::map<Letter, rpc::Buffer> early_;       // messages whose step has not run yet
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready_;
  bool running_ = false;
};

}  // namespace weft::collectives
