// StreamCapture: information about graphs that are being captured, from CUDA's runtime.
//
// Work on a stream that is being captured becomes part of a graph: no event reports its end. While any thread
// captures in CUDA's strictest mode, querying an event elsewhere invalidates the graph, unless the querying
// thread has selected a relaxed mode. Two functions of the runtime that LibTorch has loaded, found when the
// program runs; empty without such a runtime: then nothing is captured. A value; thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/abi.h>
#include <weft/rpc/core/export.h>

#include <functional>

namespace weft::collectives::nccl {

struct WEFT_EXPORT StreamCapture {
  std::function<bool(Stream)> captures;     // whether that stream is being captured
  std::function<void(int& mode)> exchange;  // of the calling thread: sets the given mode, returns the old one

  // Of the runtime that the process has loaded; it loads none.
  static StreamCapture of_cuda();
  // False without a runtime.
  bool is_captured(Stream stream) const { return captures && captures(stream); }
};

// The calling thread queries events in this scope.
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
