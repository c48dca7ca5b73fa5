// Devices: the devices of this process, as the groups of one agent share them.
//
// Each is made once, when a group first uses it, and NCCL is found then. Agents of one process that use one
// device would each have an order of launches of its own: let one of them use it. Thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/tensor_collectives.h>
#include <weft/rpc/core/handler_pool.h>

#include <map>
#include <mutex>

namespace weft::collectives::nccl {

struct DevicesOptions {
  std::function<std::shared_ptr<const Api>()> load = [] { return Api::load(); };
  std::function<StreamCapture()> capture = [] { return StreamCapture::of_cuda(); };
};

class WEFT_EXPORT Devices {
 public:
  // loop: of the timer that looks at communicators.
  Devices(std::shared_ptr<rpc::Loop> loop, DevicesOptions options);
  ~Devices();  // waits for aborts that have begun
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  Device of(c10::Device device);  // unsupported where there is no NCCL
  StreamCapture capture() const { return options_.capture(); }

 private:
  const std::shared_ptr<rpc::Loop> loop_;
  const DevicesOptions options_;
  std::mutex mutex_;  // guards what follows
  std::shared_ptr<const Api> api_;
  std::shared_ptr<rpc::HandlerPool> background_;  // for what blocks
  std::map<c10::Device, Device, bool (*)(const c10::Device&, const c10::Device&)> made_;
};

}  // namespace weft::collectives::nccl
