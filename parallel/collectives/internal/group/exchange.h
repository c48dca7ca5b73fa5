// Exchange: one collective of this rank in flight. A backend derives the class that moves its data.
// BackendOwner: the group, as exchanges see it; implemented by GroupCore.
//
// The group numbers an exchange, watches its deadline and completes its promise; the exchange reports its
// progress to the group. An exchange is shared by the group and by the jobs that run it, and keeps its group
// alive. Thread-safety: call the functions in the group's turn (turns.h), except where a comment states
// otherwise.
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

class Exchange;
// Owned by the group and by the jobs that run the exchange.
using ExchangePtr = std::shared_ptr<Exchange>;

class WEFT_EXPORT BackendOwner {
 public:
  virtual ~BackendOwner() = default;

  // On any thread:
  // Whether the calling thread may wait for other ranks. A thread of an agent may not.
  virtual bool may_wait_here() const = 0;
  // Runs a job in turn. If `inlined`, this thread runs the earlier jobs and then this job. Otherwise this
  // thread runs the job only if there is no other job. If this thread does not run the job, the thread that
  // is running jobs or the group's loop runs it.
  virtual void run_in_turn(rpc::Callback job, bool inlined) = 0;
  // In turn, numbers and keeps an exchange, delivers its messages that have already arrived, and calls its
  // begin().
  virtual void begin(ExchangePtr exchange, bool inlined) = 0;

  // In turn:
  // Keeps an exchange that its backend has numbered and started.
  virtual void keep(const ExchangePtr& exchange) = 0;
  // Sends bytes to a rank, then runs `left` in turn. The group fails if they cannot be sent.
  virtual void send_part(ExchangePtr exchange, int to, std::uint32_t label, const rpc::Buffer& bytes,
                         rpc::Callback left) = 0;
  // Reports that another rank has a different signature: all ranks then exchange their signatures.
  virtual void differs(const ExchangePtr& exchange) = 0;
  // Ends the group with that error. error: null if the group has already ended, and the exchange only reports
  // that it has stopped.
  virtual void failed(const ExchangePtr& exchange, const std::exception_ptr& error) = 0;
  // Whether the group has ended.
  virtual bool has_ended() const = 0;

  // In turn, or on any thread if the group does not keep the exchange:
  virtual void done(const ExchangePtr& exchange) = 0;
  // The ranks' signatures differ: exchange->signatures has the signature of each rank.
  virtual void differed(const ExchangePtr& exchange) = 0;
};

class WEFT_EXPORT Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<BackendOwner> owner, Collective&& collective)
      : owner(std::move(owner)), collective(std::move(collective)), hash(this->collective.signature.hash()) {}
  virtual ~Exchange() = default;

  // Called once, on any thread. inlined: runs on this thread until it must wait.
  virtual void start(bool inlined) { owner->begin(shared_from_this(), inlined); }
  // The exchange's number among the group's collectives. Any thread.
  virtual std::uint64_t sequence() const { return number; }
  // Whether this rank may still need data of that rank.
  virtual bool awaits(int rank) = 0;
  // When this rank learned that all ranks have started the collective. 0: it does not know.
  virtual FlightClock::Ticks arrived() const { return 0; }
  // Starts to move data. Called when the group has numbered the exchange.
  virtual void begin() {}
  // Receives a message of a rank with the same signature.
  virtual void deliver(int /*from*/, std::uint32_t /*label*/, rpc::Buffer /*bytes*/) {}
  // Called once, after close(), if the ranks' signatures differ.
  virtual void on_difference() {}
  // From now on, the exchange moves no data and reports nothing.
  virtual void close() { closed = true; }

  // The signature and the source location, for error messages.
  std::string text() const { return collective.text(); }

  // The number of elements of an all_to_all_v for that rank, and from that rank. Each pair of ranks compares
  // these numbers. 0 for all other operations.
  std::uint64_t elements_for(int rank) const { return between(collective.layout.blocks, rank); }
  std::uint64_t elements_from(int rank) const { return between(collective.layout.from, rank); }
  // The number of elements that another rank sends to this rank. by: the hash in the other rank's message,
  // which is the signature's hash plus that number. nullopt: the other rank runs another collective.
  std::optional<std::uint64_t> announced(std::uint64_t by) const {
    return by - hash < (has_sizes_of_pairs() ? max_elements : 1) ? std::optional(by - hash) : std::nullopt;
  }

  // hash: the hash of the signature. Each message of the collective carries the sum of the hash and of
  // elements_for(receiver).
  const std::shared_ptr<BackendOwner> owner;
  Collective collective;
  const std::uint64_t hash;
  // Set by the backend while it uses the collective's memory. The backend then reports the end of the
  // exchange, also after Backend::stop().
  bool in_use = false;

  // Members that the group uses.
  const FlightClock::Ticks created = FlightClock::now();
  std::optional<FlightRecorder::Ticket> ticket;  // nullopt: not recorded while in flight
  rpc::Promise<void> promise;
  rpc::Clock::time_point deadline;
  rpc::Clock::time_point warns_at = rpc::Clock::time_point::max();  // max: never
  std::uint64_t number = 0;
  bool kept = false;    // the group keeps the exchange
  bool closed = false;  // close() was called, or the exchange has completed
  bool disagrees = false;
  bool asking = false;                    // a request for the missing ranks is in flight
  std::map<int, std::string> signatures;  // of the ranks that have sent their signature

 private:
  static constexpr std::uint64_t max_elements = std::uint64_t{1} << 44;
  bool has_sizes_of_pairs() const { return collective.layout.operation == Operation::all_to_all_v; }
  std::uint64_t between(const std::vector<Range>& blocks, int rank) const {
    return has_sizes_of_pairs() ? blocks[static_cast<std::size_t>(rank)].size() : 0;
  }
};

}  // namespace weft::collectives
