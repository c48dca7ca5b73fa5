// The ledger of a simulation of agents: every call with its outcome, and all memory that was lent to a call.
// The simulation checks the agents against this ledger alone.
//
// When a call has succeeded, or failed with an error of its handler, the ledger overwrites its memory at
// once, so that a late read sees wrong bytes. Memory that is released is overwritten, then freed, so that
// AddressSanitizer also reports later reads.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/testing/simulation/sim_world.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace weft::test {

inline std::byte pattern(std::uint64_t key, std::size_t i) {
  return static_cast<std::byte>((key * 131 + i * 7 + (i >> 8)) & 0xff);
}
inline bool has_pattern(const rpc::Buffer& bytes, std::uint64_t key) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes.data()[i] != pattern(key, i)) return false;
  return true;
}

struct CallRecord {
  const char* method;  // a string literal
  SimProcess* from;
  bool notify = false;
  bool deadline = false;
  bool dropped = false;  // no consumer waits for the result
  bool again = false;    // the call may be retried, and may run at each attempt
  int completions = 0;
  int runs = 0;  // of its handler
  bool value = false;
  std::optional<rpc::ErrorKind> error;
  rpc::Execution execution = rpc::Execution::unknown;
  std::weak_ptr<std::byte[]> lent;
  std::size_t lent_size = 0;
};

class Ledger {
 public:
  // quarantine: released memory is overwritten at once, but freed only with the world.
  explicit Ledger(SimWorld& world, bool quarantine = false) : world_(world), quarantine_(quarantine) {}

  std::uint64_t begin(SimProcess& from, const char* method) {
    const std::uint64_t number = ++last_;
    calls_.emplace(number, CallRecord{.method = method, .from = &from});
    world_.trace().add(world_.now(), method, from.name(), number);
    return number;
  }
  CallRecord& operator[](std::uint64_t number) { return calls_.at(number); }
  const std::map<std::uint64_t, CallRecord>& calls() const { return calls_; }

  // Memory of a process, filled with the pattern of `key`. call: the call whose argument it is; 0 for a
  // result. what: its name in the report of memory that is still held.
  rpc::Buffer lend(SimProcess& process, std::uint64_t call, std::size_t size, std::uint64_t key,
                   const char* what = "bytes") {
    const std::uint64_t loan = ++last_loan_;
    loans_[&process].emplace(loan, what);
    std::shared_ptr<std::byte[]> memory(new std::byte[size], [this, &process, loan, size](std::byte* bytes) {
      std::memset(bytes, spoilt, size);
      std::unique_ptr<std::byte[]> memory(bytes);
      if (quarantine_) quarantined_.push_back(std::move(memory));
      loans_[&process].erase(loan);
    });
    for (std::size_t i = 0; i < size; ++i) memory[i] = pattern(key, i);
    if (call != 0) {
      CallRecord& record = calls_.at(call);
      record.lent = memory;
      record.lent_size = size;
    }
    std::byte* bytes = memory.get();
    return rpc::Buffer(std::shared_ptr<void>(std::move(memory), bytes), bytes, size);
  }
  // A handler of the call has begun.
  void runs(std::uint64_t call) {
    CallRecord& record = calls_.at(call);
    if (++record.runs != 1 && !record.again) violation(call, "its handler ran twice");
    if (record.completions != 0 && record.execution == rpc::Execution::not_sent)
      violation(call, "its handler ran, though its caller got the error that it was not sent");
  }

  template <class T>
  void completed(std::uint64_t call, const rpc::Result<T>& result) {
    if (closed_) return;  // the world ends: calls that are destroyed complete, too
    CallRecord& record = calls_.at(call);
    if (!record.from->alive()) violation(call, "completed in a process that is gone");
    if (++record.completions != 1) violation(call, "completed twice");
    bool answered = result.ok();
    std::string why;
    if (result.ok()) {
      record.value = true;
      if (record.runs == 0 && !record.notify) violation(call, "has a value, though its handler did not run");
    } else {
      try {
        std::rethrow_exception(result.error());
      } catch (const rpc::RemoteError& error) {
        answered = true;
        why = error.what();
        record.error = error.kind();
        record.execution = error.execution();
      } catch (const rpc::Error& error) {
        why = error.what();
        record.error = error.kind();
        record.execution = error.execution();
      } catch (const std::exception& error) {
        violation(call, std::string("ended with something else than an Error: ") + error.what());
      }
    }
    if (record.error == rpc::ErrorKind::resource_exhausted)
      violation(call, "was refused, though its caller keeps to its credit: " + why);
    if (record.error == rpc::ErrorKind::permission_denied)
      violation(call, "was denied, though all may do all: " + why);
    if (record.execution == rpc::Execution::not_sent && record.runs != 0)
      violation(call, "its caller got the error that it was not sent, though its handler ran");
    world_.trace().add(world_.now(), result.ok() ? "ends well" : "fails", record.from->name(), call,
                       record.error ? static_cast<std::uint64_t>(*record.error) : 0);
    // The reply has arrived, so the arguments were read before. A second read of them is an error.
    if (const auto memory = record.lent.lock(); memory != nullptr && answered && !record.notify)
      std::memset(memory.get(), spoilt, record.lent_size);
  }

  void wrong(std::uint64_t call, const std::string& what) { violation(call, what); }

  // Call it when the world is quiescent. all_acknowledged: no process keeps a reply for a peer whose silent
  // death is not detected yet.
  void check_at_rest(bool all_acknowledged) {
    for (const auto& [number, record] : calls_) {
      if (!record.from->alive() || record.dropped) continue;
      if (record.completions == 0) violation(number, "never completed");
    }
    if (!all_acknowledged) return;
    std::set<std::string> held;  // by name: the addresses of processes differ when the seed is replayed
    for (const auto& [process, loans] : loans_) {
      if (!process->alive() || loans.empty()) continue;
      std::string line =
          process->name() + ": " + std::to_string(loans.size()) + " pieces of lent memory are held:";
      for (const auto& [loan, what] : loans) line += std::string(" ") + what + " #" + std::to_string(loan);
      held.insert(std::move(line));
    }
    for (const std::string& line : held) world_.violation(line);
  }
  void close() { closed_ = true; }

 private:
  static constexpr int spoilt = 0xdb;

  void violation(std::uint64_t call, const std::string& what) {
    const CallRecord& record = calls_.at(call);
    world_.violation("call " + std::to_string(call) + " (" + record.from->name() + ", " + record.method +
                     "): " + what);
  }

  SimWorld& world_;
  const bool quarantine_;
  std::vector<std::unique_ptr<std::byte[]>> quarantined_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, CallRecord> calls_;
  std::uint64_t last_loan_ = 0;
  // memory that is held, by the process that lent it
  std::map<SimProcess*, std::map<std::uint64_t, const char*>> loans_;
  bool closed_ = false;
};

}  // namespace weft::test
