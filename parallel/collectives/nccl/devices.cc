#include <weft/parallel/collectives/nccl/devices.h>

#include <weft/rpc/core/when_all.h>

#include <thread>
#include <utility>

namespace weft::collectives::nccl {
namespace {

bool before(const c10::Device& left, const c10::Device& right) {
  return std::pair(left.type(), left.index()) < std::pair(right.type(), right.index());
}

// Two threads: one may be inside NCCL for long. The last that holds them may be on one of them.
std::shared_ptr<rpc::HandlerPool> threads_for_what_blocks() {
  const auto end = [](rpc::HandlerPool* pool) {
    pool->join();
    delete pool;
  };
  return {new rpc::HandlerPool(2), [end](rpc::HandlerPool* pool) {
            pool->running_here() ? std::thread(end, pool).detach() : end(pool);
          }};
}

}  // namespace

Devices::Devices(DevicesOptions options) : options_(std::move(options)), made_(before) {}

// Watches and the loop first: communicators that they drop are aborted in the background. A watch that went
// on would keep a communicator that a thread of the background begins to close: nothing looks at it any more.
Devices::~Devices() {
  for (const auto& [name, device] : made_) device.watch->end();
  if (loop_ != nullptr) loop_->stop();
  if (background_ != nullptr && !background_->running_here()) background_->join();
}

std::shared_ptr<rpc::HandlerPool> Devices::background() {
  std::lock_guard lock(mutex_);
  if (background_ == nullptr) background_ = threads_for_what_blocks();
  return background_;
}

Devices::AbortsTogether::AbortsTogether(Devices& devices) {
  {
    std::lock_guard lock(devices.mutex_);
    for (const auto& [name, device] : devices.made_) paused_.push_back(device);
  }
  for (const Device& device : paused_) device.aborts->pause();
}

Devices::AbortsTogether::~AbortsTogether() {
  for (const Device& device : paused_) device.aborts->go_on(device);
}

void Devices::run(rpc::Callback job) { background()->post(std::move(job)); }

void Devices::add_closing(rpc::Future<void> closing) {
  std::lock_guard lock(mutex_);
  std::erase_if(closing_, [](const auto& one) { return one.ready(); });
  closing_.push_back(std::move(closing).then([](rpc::Result<void>&&) { return rpc::Result<void>{}; }));
}

rpc::Future<void> Devices::closed() {
  std::lock_guard lock(mutex_);
  return rpc::when_all(std::exchange(closing_, {}));
}

Device Devices::of(c10::Device device) {
  std::lock_guard loading(loading_);
  const auto pool = background();
  {
    std::lock_guard lock(mutex_);
    if (const auto found = made_.find(device); found != made_.end()) return found->second;
  }
  if (api_ == nullptr) {
    api_ = options_.load();
    loop_ = std::make_shared<rpc::AsioLoop>();
  }
  std::lock_guard lock(mutex_);
  return made_.emplace(device, device_of(device, api_, loop_, pool)).first->second;
}

}  // namespace weft::collectives::nccl
