// Aborts: the communicators of one device that must be aborted. NCCL aborts them in one group.
//
// NCCL's abort may wait for all kernels on the device. So if communicators were aborted one after the other,
// the first abort could wait for ever for a kernel of the second communicator (NVIDIA/nccl#1013,
// pytorch/pytorch#119797). The group includes all communicators that are added before the group starts: at
// least all that are added during a pause. Thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/internal/abi.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/unique_function.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::collectives::nccl {

struct Device;

class WEFT_EXPORT Aborts {
 public:
  // Called on the background executor, with NCCL's result. If the device could not be used, the text states
  // why.
  using Done = rpc::UniqueFunction<void(Result, const std::optional<std::string>&)>;
  // Returns the handle of a communicator that no thread uses any more. Null: nothing is aborted, and `done`
  // is not called. Must not block.
  using Take = std::function<Comm*()>;
  // take: also called on the background executor.
  void add(const Device& device, Take take, Done done = nullptr);
  void add(const Device& device, Comm* handle, Done done = nullptr) {
    add(device, [handle] { return handle; }, std::move(done));
  }

  // No abort starts between pause() and resume(). Pauses may be nested: aborts start after the last resume().
  // Neither function blocks.
  void pause();
  void resume(const Device& device);

 private:
  struct Abort {
    Take take;
    Done done;
  };
  void start(const Device& device) WEFT_REQUIRES(mutex_);
  void run(const Device& device);

  rpc::Mutex mutex_;
  std::vector<Abort> added_ WEFT_GUARDED_BY(mutex_);
  std::size_t pauses_ WEFT_GUARDED_BY(mutex_) = 0;
  bool started_ WEFT_GUARDED_BY(mutex_) = false;  // run() is posted
};

}  // namespace weft::collectives::nccl
