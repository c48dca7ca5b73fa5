// Devices: the devices of this process, shared by the groups of one agent.
//
// Each device is created when a group first uses it; the first one also loads NCCL. One loop polls the
// communicators, and a pool runs blocking work: these threads call CUDA and NCCL, and no loop of the agent
// does. Two agents of one process would order their launches on a device separately: let only one of them use
// the device. Thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/devices_options.h>
#include <weft/parallel/collectives/nccl/internal/tensor_collectives.h>
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/mutex.h>

#include <map>
#include <vector>

namespace weft::collectives::nccl {

class WEFT_EXPORT Devices {
 public:
  explicit Devices(DevicesOptions options);
  // Waits for its threads and their aborts. If it runs on one of these threads, another thread waits instead.
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  Device of(c10::Device device);  // unsupported without NCCL; may block
  void run(rpc::Callback job);    // on a thread of the pool

  // Communicators that are aborted on a device while this object exists are aborted in one group.
  class WEFT_EXPORT AbortsTogether {
   public:
    explicit AbortsTogether(Devices& devices);
    ~AbortsTogether();
    AbortsTogether(const AbortsTogether&) = delete;
    AbortsTogether& operator=(const AbortsTogether&) = delete;

   private:
    std::vector<Device> paused_;
  };

  void add_closing(rpc::Future<void> closing);  // closing: completes when a communicator is closed
  rpc::Future<void> closed();                   // completes when the added futures have completed
  // Calls DevicesOptions::capture.
  StreamCapture capture() const { return options_.capture ? options_.capture() : StreamCapture::of_cuda(); }

 private:
  std::shared_ptr<rpc::HandlerPool> background();

  const DevicesOptions options_;
  rpc::Mutex loading_;  // held while NCCL is loaded
  std::shared_ptr<const Api> api_ WEFT_GUARDED_BY(loading_);
  std::shared_ptr<rpc::AsioLoop> loop_ WEFT_GUARDED_BY(loading_);  // of the timer that polls communicators
  rpc::Mutex mutex_;                                               // taken after loading_, or alone
  std::shared_ptr<rpc::HandlerPool> background_ WEFT_GUARDED_BY(mutex_);  // for blocking work
  std::vector<rpc::Future<void>> closing_ WEFT_GUARDED_BY(mutex_);
  std::map<c10::Device, Device, bool (*)(const c10::Device&, const c10::Device&)> made_
      WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::collectives::nccl
