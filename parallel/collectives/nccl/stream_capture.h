// StreamCapture: what must be known of graphs that are being captured, of CUDA's runtime.
//
// What is put on a stream that is captured becomes part of a graph: no event tells when it ends. And while
// any thread captures in CUDA's strictest mode, asking an event elsewhere would spoil the graph, unless the
// thread that asks has said that it means no harm. Two functions of the runtime that LibTorch has brought,
// found when the program runs; empty where there is none: then nothing is captured. A value; thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/abi.h>
#include <weft/rpc/core/export.h>

#include <functional>

namespace weft::collectives::nccl {

struct WEFT_EXPORT StreamCapture {
  std::function<bool(Stream)> captures;     // whether that stream is being captured
  std::function<void(int& mode)> exchange;  // of the calling thread: gets the given mode, gives the old one

  static StreamCapture of_cuda();

  bool is_captured(Stream stream) const { return captures && captures(stream); }
};

// The calling thread asks events for this scope.
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
