// CallStreams: one stream from LibTorch's pools for each device that a served call may use. They are the
// current streams while the handler of the call runs, on any thread and across suspensions.
//
// Arguments are copied on these streams. Whenever the handler suspends or ends, its thread waits for the work
// on these streams only. So the next handler of the same object, or the fetch of a kept result, finds the
// work completed. The ContextSwitch of the call calls enter() and leave() (see executor.h). Only the thread
// that runs the call may use streams().
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

  // Like the functions of ContextSwitch.
  void enter();
  void leave();

 private:
  std::vector<c10::Stream> streams_;  // updated if the handler makes other streams current
  std::vector<c10::Stream> outside_;  // while the handler runs: the thread's previous streams
};

// Returns a context for a call, which owns these streams.
std::unique_ptr<rpc::ContextSwitch> make_stream_context(std::shared_ptr<CallStreams> streams);

}  // namespace weft::tensor
