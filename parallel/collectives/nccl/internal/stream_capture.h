// StreamCapture: two functions of CUDA's runtime for streams that are being captured into graphs.
//
// Work on a stream that is being captured becomes part of a graph: no event reports its completion. While any
// thread captures in CUDA's strictest mode (global), a query of an event by another thread invalidates the
// graph, unless the querying thread has selected the relaxed mode. The functions are looked up at run time in
// the CUDA runtime that LibTorch has loaded. If LibTorch has loaded no CUDA runtime, the functions are empty,
// and no stream is being captured. A value; thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/internal/abi.h>
#include <weft/rpc/core/export.h>

#include <functional>

namespace weft::collectives::nccl {

struct WEFT_EXPORT StreamCapture {
  std::function<bool(Stream)> captures;     // whether that stream is being captured
  std::function<void(int& mode)> exchange;  // swaps the calling thread's capture mode with `mode`

  // The functions of the runtime that the process has loaded. Does not load a runtime.
  static StreamCapture of_cuda();
  // Whether the stream is being captured; false without a runtime.
  bool is_captured(Stream stream) const { return captures && captures(stream); }
};

// A scope in which the calling thread may query events: selects the relaxed mode, and restores the old mode
// at the end.
class AsksEvents {
 public:
  explicit AsksEvents(const StreamCapture& capture) : capture_(capture) { exchange(); }
  AsksEvents(const AsksEvents&) = delete;
  AsksEvents& operator=(const AsksEvents&) = delete;
  ~AsksEvents() { exchange(); }

 private:
  void exchange() {
    if (capture_.exchange) capture_.exchange(mode_);
  }
  static constexpr int relaxed = 2;  // cudaStreamCaptureModeRelaxed
  const StreamCapture& capture_;
  int mode_ = relaxed;
};

}  // namespace weft::collectives::nccl
