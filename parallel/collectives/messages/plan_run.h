// PlanRun: carries out one rank's plan on real memory, as messages come and go.
//
// Pure of transport and threads: an Outbox takes what is sent, deliver() gives what has come, in any order,
// also before begin(). A step runs as soon as those that it waits for have ended; a message that comes
// earlier is kept. It ends once, with success or with the first error; fail() ends it from outside. The jobs
// that the outbox holds keep it and its memory alive. Thread-safety: one call at a time, the outbox's jobs
// among them.
#pragma once

#include <weft/parallel/collectives/operation/reduction.h>
#include <weft/parallel/collectives/plan/plan.h>
#include <weft/parallel/collectives/plan/plan_memory.h>
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
  // The bytes stay as they are until `left` has run or is dropped, which may be at once.
  virtual void send(int to, std::uint32_t label, const rpc::Buffer& bytes, rpc::Callback left) = 0;
};

class WEFT_EXPORT PlanRun final : public std::enable_shared_from_this<PlanRun> {
 public:
  using Done = rpc::UniqueFunction<void(std::exception_ptr)>;  // null: it went well

  // reduction: of plans that reduce. wire: a floating-point type of 16 bits, as which elements and
  // accumulators of float32 travel; results are rounded to it, so that they are alike on all ranks.
  // divisor: of averages, where what is reduced was of more than `ranks`; 0: of those. pool: of memory for
  // the copies that it sends; null: fresh memory.
  PlanRun(int rank, int ranks, Plan plan, PlanMemory memory, std::optional<Reduction> reduction, Done done,
          std::optional<c10::ScalarType> wire = {}, int divisor = 0, rpc::MemoryPool* pool = nullptr);

  void begin(Outbox& outbox);
  // protocol_error ends the run where no step expects the message, or its size is another.
  void deliver(int from, std::uint32_t label, rpc::Buffer bytes);
  void fail(std::exception_ptr error);

  bool ended() const { return !done_; }
  // Those from whom it still expects something, in ascending order.
  std::vector<int> awaited() const;

 private:
  struct Progress {
    std::size_t waits_for = 0;
    bool copies = false;  // a send that does not wait for its message
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
  std::map<Letter, std::uint32_t> expected_;  // the steps that take messages and have not run yet
  std::map<Letter, rpc::Buffer> early_;       // messages whose step has not run yet
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready_;
  bool running_ = false;
};

}  // namespace weft::collectives
