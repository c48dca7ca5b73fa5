// CallStreams: a stream for each device that a served call may use, from LibTorch's pools; its handler runs
// with them as the current ones, over its suspensions too, on whatever thread.
//
// Arguments are copied on these streams, so that the handler finds them there. Whenever the handler suspends
// or ends, its thread waits for what it has put on them, and for nothing else: whoever comes next, be it the
// next handler of the same object or who fetches a result that stays, finds it done. A ContextSwitch of the
// call; see executor.h for its thread-safety. streams() is for the thread that has the call.
#pragma once

#include <weft/rpc/core/executor.h>

#include <c10/core/Stream.h>

#include <memory>
#include <vector>

namespace weft::tensor {

class CallStreams {
 public:
  explicit CallStreams(const std::vector<c10::Device>& devices);

  const std::vector<c10::Stream>& streams() const { return streams_; }

  // As ContextSwitch's.
  void enter();
  void leave();

 private:
  std::vector<c10::Stream> streams_;  // where the handler makes others current, those
  std::vector<c10::Stream> outside_;  // while it runs: what the thread had
};

// Its part of a call's contexts; keeps it.
std::unique_ptr<rpc::ContextSwitch> make_stream_context(std::shared_ptr<CallStreams> streams);

}  // namespace weft::tensor
