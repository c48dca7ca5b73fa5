// Transport: a way to make connections. One a scheme; an agent holds those that it may use.
//
// Thread-safety: connect() and listen() may be called from any thread; callbacks come on the loops that were
// given.
#pragma once

#include <weft/rpc/core/result.h>
#include <weft/rpc/transport/address.h>
#include <weft/rpc/transport/connection.h>

#include <functional>

namespace weft::rpc {

// The host of the address answered that nobody listens there.
class WEFT_EXPORT ConnectionRefused final : public Error {
 public:
  explicit ConnectionRefused(const std::string& message)
      : Error(ErrorKind::unavailable, message, Execution::not_sent) {}
};

class WEFT_EXPORT Listener {
 public:
  virtual ~Listener() = default;
  virtual const Address& address() const = 0;  // with the port that was found
  virtual void
  close() = 0;  // any thread; nobody gets in after it returned, who had got in may still be handed over
};

class WEFT_EXPORT Transport {
 public:
  using Connected = UniqueFunction<void(Result<std::shared_ptr<Connection>>)>;
  using Accepted = std::function<void(std::shared_ptr<Connection>)>;  // on the connection's loop
  using PickLoop = std::function<std::shared_ptr<Loop>()>;  // null: nobody wants connections any more

  virtual ~Transport() = default;
  virtual std::string_view scheme() const = 0;
  // Its connections prove the peer by ConnectionOptions::credentials, or do not leave this process. An agent
  // with credentials connects and listens over no others.
  virtual bool checks_credentials() const { return false; }
  // Fails with ConnectionRefused if nobody listens, with unavailable if nobody answers within
  // options.connect_timeout. Throws
  // invalid_argument for an address of another transport.
  virtual void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
                       Connected done) = 0;
  virtual void shut_down() {}  // connects that are under way fail soon
  // allow_remote: without it an address that other hosts can reach is permission_denied.
  virtual std::unique_ptr<Listener> listen(const Address& address, PickLoop pick,
                                           const ConnectionOptions& options, bool allow_remote,
                                           Accepted accepted) = 0;
};

}  // namespace weft::rpc
