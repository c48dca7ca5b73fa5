// EtcdWatch: a copy of the changes under a prefix of etcd since some revision, updated by one stream, for
// waits.
//
// The watch is opened on demand, and closed when no wait has existed for a while. If the stream ends, is
// silent for long, or its server no longer answers, the watch is reopened at the same revision on any server
// that answers. Waits continue meanwhile. If the reopening takes longer than the timeout, they fail with
// unavailable. If etcd no longer has the missed changes, all waits are woken to read the store again. Used on
// its loop; owned through shared_ptr.
#pragma once

#include <weft/rpc/job/store/internal/etcd_client.h>
#include <weft/rpc/job/store/store_table.h>

namespace weft::rpc::detail {

class EtcdWatch : public std::enable_shared_from_this<EtcdWatch> {
 public:
  EtcdWatch(std::shared_ptr<Loop> loop, EtcdClient& client, std::string prefix,
            std::chrono::nanoseconds timeout);

  // After the future completes, the copy has every change after known_since(). The keys of the copy lack the
  // prefix.
  Future<void> open();
  bool is_open() const { return stage_ == Stage::open; }
  std::uint64_t known_since() const { return copy_.known_since(); }
  std::uint64_t version() const { return last_; }  // the version of the last change received
  void wait(const std::shared_ptr<StoreWait>& wait);
  void drop(const std::shared_ptr<StoreWait>& wait) { copy_.drop(wait); }
  void close(const Error& reason);

 private:
  enum class Stage { closed, opening, open };
  void begin(std::uint64_t from);
  void on_events(EtcdEvents&& events, std::uint64_t from);
  void on_ended(const Error& reason);
  void watch_over();
  void fail(const Error& reason);
  void stop();

  const std::shared_ptr<Loop> loop_;
  EtcdClient& client_;
  const std::string prefix_;
  const std::chrono::nanoseconds timeout_;
  StoreTable copy_;
  Stage stage_ = Stage::closed;
  EtcdClient::WatchId stream_ = 0;
  std::uint64_t turn_ = 0;       // counts the streams; results of earlier ones are ignored
  std::uint64_t last_ = 0;       // the revision up to which the copy is complete; 0: none
  Clock::time_point give_up_{};  // the time at which opening fails
  std::vector<Promise<void>> openers_;
  Loop::TimerId timer_ = 0;
  bool heard_ = false;     // something arrived from the stream since the last check
  int idle_checks_ = 0;    // checks in a row without a wait
  int silent_checks_ = 0;  // checks in a row without a message
};

}  // namespace weft::rpc::detail
