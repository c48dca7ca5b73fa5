// CallPart: what a layer above RPC adds to one call, on either side of it. RRefs and passes travel so.
//
// The caller's part writes the request and reads the reply; the callee's part reads the request and writes
// the reply. Called in that order, never concurrently, possibly on different threads. It ends with the call.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/wire/message.h>

#include <exception>

namespace weft::rpc {

class WEFT_EXPORT CallPart {
 public:
  virtual ~CallPart() = default;
  virtual void write(OutgoingMessage&) {}  // before the values are encoded
  virtual void seal(OutgoingMessage&) {}   // after
  virtual void read(IncomingMessage&) {}   // before the values are decoded
  // The caller's part: the call is over. error: null where a reply without failure was read, or a
  // notification has left. The callee's part: only where its reply was not sent, which is then the error.
  virtual void ended(const std::exception_ptr& error) { (void)error; }
};

}  // namespace weft::rpc
