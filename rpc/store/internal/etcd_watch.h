// EtcdWatch: a copy of what has changed in a part of etcd since some revision, kept up to date by one stream,
// for those who wait for changes.
//
// Opened when somebody wants it, closed when nobody has waited for a while. When the stream ends, or its
// server no longer answers, it is opened again where it ended, at whichever server answers; those who wait
// notice nothing, unless that takes longer than the timeout: then they fail (unavailable). Where etcd no
// longer knows what was missed, all who wait are told to look again. On its loop; owned through shared_ptr.
#pragma once

#include <weft/rpc/store/internal/etcd_client.h>
#include <weft/rpc/store/store_table.h>

namespace weft::rpc::detail {

class EtcdWatch : public std::enable_shared_from_this<EtcdWatch> {
 public:
  EtcdWatch(std::shared_ptr<Loop> loop, EtcdClient& client, std::string prefix,
            std::chrono::nanoseconds timeout);

  // From then on the copy knows of every change after known_since(). Keys in it are without the prefix.
  Future<void> open();
  bool is_open() const { return stage_ == Stage::open; }
  std::uint64_t known_since() const { return copy_.known_since(); }
  std::uint64_t version() const { return last_; }  // of the last change that it has heard of
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
  std::uint64_t turn_ = 0;       // of the stream; what an earlier one still says does not count
  std::uint64_t last_ = 0;       // the revision up to which the copy is whole; 0: it is none
  Clock::time_point give_up_{};  // opening
  std::vector<Promise<void>> openers_;
  Loop::TimerId timer_ = 0;
  bool heard_ = false;  // from the stream, since the last look
  int idle_looks_ = 0;
};

}  // namespace weft::rpc::detail
