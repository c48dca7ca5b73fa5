// SimTransport: the Transport of one process in a simulated world. Address: sim://name.
//
// Each process has its own SimTransport, so that the network knows which process connects or listens. A
// connect takes a round trip. It is refused if no process listens. During a partition, it waits for the
// connect_timeout of the connection, but not longer than SimWeather::connect_timeout. Its loops are SimLoops
// of its process. Thread-safety: none.
#pragma once

#include <weft/rpc/testing/simulation/sim_process.h>
#include <weft/rpc/transport/transport.h>

#include <memory>
#include <vector>

namespace weft::test {

class WEFT_EXPORT SimTransport final : public rpc::Transport {
 public:
  explicit SimTransport(SimProcess& process) : process_(process) {}

  std::string_view scheme() const override { return "sim"; }
  void connect(const rpc::Address& address, std::shared_ptr<rpc::Loop> loop,
               const rpc::ConnectionOptions& options, Connected done) override;
  void shut_down() override;
  std::unique_ptr<rpc::Listener> listen(const rpc::Address& address, PickLoop pick,
                                        const rpc::ConnectionOptions& options, bool allow_remote,
                                        Accepted accepted) override;

 private:
  struct Attempt;

  SimProcess& process_;
  std::vector<std::weak_ptr<Attempt>> attempts_;
};

}  // namespace weft::test
