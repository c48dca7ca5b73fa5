// FileStore: a store in one file, for agents that share a directory (file:///path) and do not know an address
// yet.
//
// The file is a log of changes, appended under an advisory lock; each process replays it into its own copy.
// If a process dies while it appends, the next writer removes the incomplete record. One thread of the store
// does all work on the file, so no call blocks. While an operation waits, the thread checks for changes every
// `interval`, which bounds the delay of a wait.
//
// Each process that has the file open checks the leases by its own clock. A lease expires if one of these
// processes has seen no renewal for the lease's time. Time in which the process did not check is not counted.
// Clocks of hosts are never compared. The log is never compacted: the store is for rendezvous, not for data.
// Use a new path for each job, or discard() the file at its end. Thread-safe; futures complete on the store's
// thread.
#pragma once

#include <weft/rpc/job/store/store.h>

#include <chrono>
#include <memory>
#include <string_view>

namespace weft::rpc {

// The options of one process; they may differ between processes.
struct FileStoreOptions {
  std::chrono::milliseconds interval{20};     // between two checks for changes while an operation waits
  std::chrono::milliseconds timeout{10'000};  // the longest wait for the lock; then unavailable
};

class WEFT_EXPORT FileStore final : public Store {
 public:
  // Opens or creates the file; throws unavailable with the system's error.
  explicit FileStore(const std::string& path, FileStoreOptions options = {});
  ~FileStore() override;
  // Parses "file:///path"; throws invalid_argument.
  static std::string path_of(std::string_view url);

  Future<void> set(std::string key, std::string value, LeaseId lease = no_lease) override;
  Future<std::string> get(std::string key, CallOptions options = {}) override;
  Future<std::optional<std::string>> try_get(std::string key) override;
  Future<std::int64_t> add(std::string key, std::int64_t delta) override;
  Future<StoreExchange> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                                    LeaseId lease = no_lease) override;
  Future<void> wait(std::vector<std::string> keys, CallOptions options = {}) override;
  Future<bool> remove(std::string key) override;
  Future<StoreView> list(std::string prefix) override;
  Future<StoreChanges> watch(std::string prefix, std::uint64_t after, CallOptions options = {}) override;
  Future<StoreLease> grant(std::chrono::nanoseconds ttl) override;
  Future<void> renew(LeaseId lease) override;
  Future<void> revoke(LeaseId lease) override;

  void close();            // current and later operations fail with shut_down
  Future<void> discard();  // removes the file; processes that have it open continue

 private:
  struct State;
  template <class T, class F>
  Future<T> submit(bool writes, F operation);
  template <class Waiting>
  auto later(Waiting waiting);

  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
