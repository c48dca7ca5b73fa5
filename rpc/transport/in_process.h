// InProcess: a network within one process. A program or test with several agents creates one InProcess and
// gives it to each agent.
//
// Frames are passed without a socket. As over a wire, headers are checked and attachments are copied, so the
// two sides never share memory. Address: inproc://name. Thread-safe.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/transport/transport.h>

#include <map>

namespace weft::rpc {

class WEFT_EXPORT InProcess final : public Transport, public std::enable_shared_from_this<InProcess> {
 public:
  std::string_view scheme() const override { return "inproc"; }
  bool checks_credentials() const override { return true; }
  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override;
  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool allow_remote, Accepted accepted) override;

 private:
  struct Entry;
  std::shared_ptr<Entry> find(const std::string& name);  // null: no agent listens there

  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
