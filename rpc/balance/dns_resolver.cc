#include <weft/rpc/balance/dns_resolver.h>

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/transport/address.h>

#include <asio/ip/tcp.hpp>

#include <set>

namespace weft::rpc {
namespace {

using asio::ip::tcp;
using Names = PeerSet::Names;

// Runs on the loop. If the loop's io_context is destroyed, a pending query ends, and its future fails.
void ask(const std::shared_ptr<Loop>& loop, const Address& address, bool certified,
         const std::shared_ptr<Promise<Names>>& promise) {
  auto resolver = std::make_shared<tcp::resolver>(io_context_of(*loop));
  resolver->async_resolve(
      address.host, address.port,
      [resolver, weak = std::weak_ptr(loop), promise, address, certified](
          const asio::error_code& error, const tcp::resolver::results_type& found) {
        const auto here = weak.lock();
        if (here == nullptr) return;
        here->run_turn([&] {
          if (error)
            return promise->fail(Error(ErrorKind::unavailable,
                                       "cannot resolve '" + address.host + "': " + error.message(),
                                       Execution::not_sent));
          std::set<std::string> names;  // sorted, because the order of an answer may change
          for (const auto& entry : found) {
            Address one = address;
            one.host = entry.endpoint().address().to_string();
            if (certified && one.certified.empty() && one.host != address.host) one.certified = address.host;
            names.insert(one.text());
          }
          promise->complete(Names(names.begin(), names.end()));
        });
      });
}

}  // namespace

PeerSet::Resolver dns_resolver(const Agent& agent, std::string_view text) {
  const Address address = Address::parse(text);
  if (address.scheme != "tcp")
    throw Error(ErrorKind::invalid_argument,
                "'" + address.text() + "' is not an address for DNS, expected tcp://host:port");
  return [weak = std::weak_ptr(agent.core()), address] {
    const auto promise = std::make_shared<Promise<Names>>();
    auto future = promise->future();
    const auto core = weak.lock();
    if (core == nullptr || core->ended()) {
      promise->fail(Error(ErrorKind::shut_down, "this agent has shut down"));
      return future;
    }
    auto loop = core->pick_loop();
    Loop& here = *loop;
    const bool certified = core->options().credentials != nullptr;
    here.post(
        [loop = std::move(loop), address, certified, promise] { ask(loop, address, certified, promise); });
    return future;
  };
}

}  // namespace weft::rpc
