// FileStore: a store in one file, for agents that share a folder (file:///path) and have no address in common
// yet.
//
// The file is a log of changes, appended under an advisory lock; every process replays it into a copy of its
// own. What a process that died half-way through an append left behind is cut off by the next one that
// writes. All file work is done by one thread of the store's own, so that no call blocks; while somebody
// waits, it looks for changes every `interval`, which bounds how late a wait ends. A lease is ended by
// whoever has the file open and has seen no renewal for its time, by his own clock and not counting time in
// which he did not look: clocks of hosts are never compared. The log is never compacted: it is for
// rendezvous, not for data. Give each job a fresh path, or discard() the file at its end. Thread-safe;
// futures complete on the store's thread.
#pragma once

#include <weft/rpc/store/store.h>

#include <chrono>
#include <memory>
#include <string_view>

namespace weft::rpc {

struct FileStoreOptions {
  std::chrono::milliseconds interval{20};
  std::chrono::milliseconds timeout{10'000};  // for the lock; then operations fail with unavailable
};

class WEFT_EXPORT FileStore final : public Store {
 public:
  // Opens or makes the file; throws unavailable, with what the system said.
  explicit FileStore(const std::string& path, FileStoreOptions options = {});
  ~FileStore() override;
  // Of "file:///path"; throws invalid_argument.
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

  void close();            // everything under way and to come fails with shut_down
  Future<void> discard();  // removes the file's name; those who have it open go on

 private:
  struct State;
  template <class T, class F>
  Future<T> submit(bool writes, F operation);
  template <class Waiting>
  auto later(Waiting waiting);

  std::shared_ptr<State> state_;
};

}  // namespace weft::rpc
