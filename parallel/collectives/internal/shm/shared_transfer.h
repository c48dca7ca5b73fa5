// SharedTransfer: one collective of ranks that share memory, as one of them executes it.
//
// A transfer publishes its signature and waits until all ranks have done so. Then it reads the data that it
// needs from the others' memory, in one of three ways that the published data determine:
//  small      all data that ranks exchange are in their slots when they publish;
//  zero copy  tensors are in shared memory; ranks read them there, and write results of an all_reduce there;
//  chunked    all data pass through windows, part by part; while one part is written, another is read.
// advance() runs until it would have to wait longer than `patience` allows; call it again to continue.
// Independent of threads; the space and the collective outlive it. Thread-safety: one call at a time; call
// awaits() on any thread.
#pragma once

#include <weft/parallel/collectives/flight/flight_clock.h>
#include <weft/parallel/collectives/internal/shm/shared_space.h>
#include <weft/parallel/collectives/internal/shm/traffic.h>
#include <weft/parallel/collectives/operation/internal/collective.h>

#include <c10/util/SmallVector.h>

namespace weft::collectives {

class WEFT_EXPORT SharedTransfer {
 public:
  // The result of advance().
  enum class State : std::uint8_t {
    in_progress,  // it must be continued with advance()
    done,         // the output is complete, and no rank accesses this rank's tensors any more
    differs,      // texts() has the signature of each rank; no data moved
    stopped,      // by Lockstep::stop()
  };

  // Publishes nothing before advance().
  SharedTransfer(SharedSpace& space, const Collective& collective);

  // The number of this transfer in the group.
  void set_sequence(std::uint64_t sequence) { sequence_ = sequence; }
  std::uint64_t sequence() const { return sequence_; }
  // Whether set_sequence() was called.
  bool begun() const { return sequence_ != none; }

  // in_progress: a brief wait has ended. Throws protocol_error if the ranks' data do not fit together.
  State advance(Lockstep::Patience patience);

  void stop() { space_.lockstep().stop(); }  // this transfer, and all later transfers of the space

  const std::vector<std::string>& texts() const { return texts_; }  // by rank, if they differ
  // Whether the transfer may still need data of that rank. Any thread.
  bool awaits(int rank) const {
    return space_.lockstep().step_of(rank) < awaited_.load(std::memory_order_acquire);
  }
  // When all ranks had published their signatures; 0: they have not. Any thread.
  FlightClock::Ticks arrived() const { return arrived_.load(std::memory_order_relaxed); }
  // The number of bytes that the transfer moves: its cost.
  std::size_t bytes() const;

 private:
  enum class Stage : std::uint8_t { start, announced, mismatch, chunked, zero_copy };

  void announce();
  State choose();
  State take_zero_copy();
  bool take_part();
  void put(std::uint64_t part);
  void reduce_part(std::uint64_t part);
  void gather_part(std::uint64_t part);

  template <class Source>
  void take(Range part, Source source);
  void publish();
  void expect_sizes() const;
  void read_texts();
  bool is_exchange_of_sizes() const;

  std::size_t part_size() const;  // elements for each reader
  Range part_of(Range whole, std::uint64_t part) const;
  std::byte* output(std::size_t element) const { return collective_.memory.output + element * item_; }
  const std::byte* input(std::size_t element) const { return collective_.memory.input + element * item_; }
  int rank() const { return space_.rank(); }
  int ranks() const { return space_.ranks(); }
  SharedHeader header_of(int rank) const { return headers_[static_cast<std::size_t>(rank)]; }

  SharedSpace& space_;
  const Collective& collective_;
  const std::size_t item_;
  const bool in_blocks_;
  const Traffic traffic_;
  static constexpr std::uint64_t none = ~std::uint64_t{0};
  std::uint64_t sequence_ = none;
  Stage stage_ = Stage::start;
  // The step that all ranks must reach before this transfer continues. Initially no rank has reached it.
  std::atomic<std::uint64_t> awaited_{~std::uint64_t{0}};
  std::atomic<FlightClock::Ticks> arrived_{0};
  c10::SmallVector<SharedHeader, 4> headers_;
  std::uint64_t parts_ = 0, part_ = 0;
  std::vector<std::string> texts_;
};

}  // namespace weft::collectives
