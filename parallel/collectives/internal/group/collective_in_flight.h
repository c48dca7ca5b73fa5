// CollectiveInFlight: one collective of this rank, from its start to its end. A backend derives the class
// that transfers its data.
//
// GroupCollectives numbers a collective, watches its deadline and completes its promise; the derived class
// reports its progress there. The object is shared by the group and by the jobs that run it, and keeps its
// group alive. Thread-safety: call the functions in the group's turn (job_queue.h), except where a comment
// states otherwise.
#pragma once

#include <weft/parallel/collectives/flight/flight_recorder.h>
#include <weft/parallel/collectives/operation/internal/collective.h>
#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/loop.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

namespace weft::collectives {

class GroupCollectives;

class WEFT_EXPORT CollectiveInFlight : public std::enable_shared_from_this<CollectiveInFlight> {
 public:
  // group: shares the ownership of its group.
  CollectiveInFlight(std::shared_ptr<GroupCollectives> group, Collective&& collective)
      : group_(std::move(group)), collective_(std::move(collective)), hash_(collective_.signature.hash()) {}
  virtual ~CollectiveInFlight() = default;

  // The arguments, and the signature with the source location, for error messages.
  const Collective& collective() const { return collective_; }
  std::string text() const { return collective_.text(); }
  FlightClock::Ticks created() const { return created_; }

  // Called once, on any thread. inlined: runs on this thread until it must wait.
  virtual void start(bool inlined) = 0;
  // Its number among the group's collectives. Any thread.
  virtual std::uint64_t sequence() const { return number_; }
  // Whether this rank may still need data of that rank.
  virtual bool awaits(int rank) = 0;
  // When this rank learned that all ranks have started the collective. 0: it does not know.
  virtual FlightClock::Ticks arrived() const { return 0; }
  // Starts to move data. Called when the group has numbered the collective.
  virtual void begin() {}
  // Receives a message of a rank with the same signature.
  virtual void deliver(int /*from*/, std::uint32_t /*label*/, rpc::Buffer /*bytes*/) {}
  // Called once, after close(), if the ranks' signatures differ.
  virtual void on_difference() {}
  // From now on, the collective moves no data and reports nothing.
  virtual void close() { closed_ = true; }

 protected:
  GroupCollectives& group() const { return *group_; }
  bool closed() const { return closed_; }        // close() was called, or the collective has completed
  bool disagrees() const { return disagrees_; }  // the ranks' signatures differ
  // Set while the collective's memory is in use. The derived class then reports its end, also after
  // Backend::stop().
  void use_memory(bool uses) { in_use_ = uses; }

 private:
  friend class GroupCollectives;

  // The number of elements of an all_to_all_v for that rank, and from that rank. Each pair of ranks compares
  // these numbers. 0 for all other operations.
  std::uint64_t elements_for(int rank) const { return between(collective_.layout.blocks, rank); }
  std::uint64_t elements_from(int rank) const { return between(collective_.layout.from, rank); }
  // The number of elements that another rank sends to this rank. by: the hash in the other rank's message,
  // which is the signature's hash plus that number. nullopt: the other rank runs another collective.
  std::optional<std::uint64_t> announced(std::uint64_t by) const {
    return by - hash_ < (has_sizes_of_pairs() ? max_elements : 1) ? std::optional(by - hash_) : std::nullopt;
  }
  static constexpr std::uint64_t max_elements = std::uint64_t{1} << 44;
  bool has_sizes_of_pairs() const { return collective_.layout.operation == Operation::all_to_all_v; }
  std::uint64_t between(const std::vector<Range>& blocks, int rank) const {
    return has_sizes_of_pairs() ? blocks[static_cast<std::size_t>(rank)].size() : 0;
  }

  const std::shared_ptr<GroupCollectives> group_;
  Collective collective_;
  // The hash of the signature. Each message of the collective carries the sum of the hash and of
  // elements_for(receiver).
  const std::uint64_t hash_;
  bool in_use_ = false, closed_ = false, disagrees_ = false;
  // Of GroupCollectives:
  const FlightClock::Ticks created_ = FlightClock::now();
  std::optional<FlightRecorder::Ticket> ticket_;  // nullopt: not recorded while in flight
  rpc::Promise<void> promise_;
  rpc::Clock::time_point deadline_;                                  // max: it has passed
  rpc::Clock::time_point warns_at_ = rpc::Clock::time_point::max();  // max: never
  rpc::Clock::time_point late_at_ = rpc::Clock::time_point::max();   // max: never
  // Of the ranks that had not begun it, when they were asked last: Activity::begun.
  std::map<int, std::uint64_t> activity_ = {};
  std::uint64_t number_ = 0;
  bool kept_ = false;                      // the group keeps the collective
  std::map<int, std::string> signatures_;  // of the ranks that have sent their signature
};

}  // namespace weft::collectives
