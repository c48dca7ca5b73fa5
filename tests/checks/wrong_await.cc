// A future awaited as it is in a coroutine of Asio's.
// expect: weft: in an asio::awaitable, write co_await future.async_get(asio::use_awaitable)
#include <weft/rpc/rpc.h>

#include <asio/use_awaitable.hpp>

asio::awaitable<void> wait(weft::rpc::Peer peer) {
  co_await peer.ready();  // mistake
  co_await peer.ready().async_get(asio::use_awaitable);
}
