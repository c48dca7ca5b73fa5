// Aborts: the communicators of one device that must be aborted. NCCL aborts them in one group.
//
// NCCL's abort may wait for all kernels on the device. So communicators that are aborted one after the other
// may wait for ever: the first abort for a kernel of the second communicator (NVIDIA/nccl#1013,
// pytorch/pytorch#119797). The group includes all communicators that are added before it starts: at least all
// that are added during a pause. Thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/abi.h>
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
  // Called with NCCL's result, or with the reason why the device could not be used; on the background
  // executor.
  using Done = rpc::UniqueFunction<void(Result, const std::optional<std::string>&)>;
  // Returns the handle of a communicator that no thread uses any more; null: it is not aborted. Must not
  // block.
  using Take = std::function<Comm*()>;
  // take: called on the background executor, too.
  void add(const Device& device, Take take, Done done = nullptr);
  void add(const Device& device, Comm* handle, Done done = nullptr) {
    add(device, [handle] { return handle; }, std::move(done));
  }

  // Between them no abort starts. They may be nested: aborts start after the last go_on(). They do not block.
  void pause();
  void go_on(const Device& device);

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
