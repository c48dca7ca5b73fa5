#include <weft/parallel/collectives/nccl/internal/devices.h>

#include <weft/rpc/core/when_all.h>

#include <thread>
#include <utility>

namespace weft::collectives::nccl {
namespace {

bool before(const c10::Device& left, const c10::Device& right) {
  return std::pair(left.type(), left.index()) < std::pair(right.type(), right.index());
}

// Two: one may be inside NCCL for a long time.
constexpr std::size_t background_threads = 2;

}  // namespace

Devices::Devices(DevicesOptions options) : options_(std::move(options)), made_(before) {}

// The threads end in this order: a communicator that the watch or the loop releases last is aborted on the
// pool. A group may be released on one of these threads, and a thread cannot wait for its own end: the thread
// of the loop may still hold communicators after this destructor. So another thread waits in this case.
Devices::~Devices() {
  const bool on_own_thread =
      (loop_ != nullptr && loop_->running_here()) || (background_ != nullptr && background_->running_here());
  auto end = [made = std::move(made_), loop = std::move(loop_), background = std::move(background_)] {
    for (const auto& [name, device] : made) device.watch->end();
    if (loop != nullptr) loop->stop();
    if (background != nullptr) background->join();
  };
  on_own_thread ? std::thread(std::move(end)).detach() : end();
}

std::shared_ptr<rpc::HandlerPool> Devices::background() {
  rpc::MutexLock lock(mutex_);
  if (background_ == nullptr) background_ = std::make_shared<rpc::HandlerPool>(background_threads);
  return background_;
}

Devices::AbortsTogether::AbortsTogether(Devices& devices) {
  {
    rpc::MutexLock lock(devices.mutex_);
    for (const auto& [name, device] : devices.made_) paused_.push_back(device);
  }
  for (const Device& device : paused_) device.aborts->pause();
}

Devices::AbortsTogether::~AbortsTogether() {
  for (const Device& device : paused_) device.aborts->resume(device);
}

void Devices::run(rpc::Callback job) { background()->post(std::move(job)); }

void Devices::add_closing(rpc::Future<void> closing) {
  rpc::MutexLock lock(mutex_);
  std::erase_if(closing_, [](const auto& one) { return one.ready(); });
  closing_.push_back(std::move(closing).then([](rpc::Result<void>&&) { return rpc::Result<void>{}; }));
}

rpc::Future<void> Devices::closed() {
  rpc::MutexLock lock(mutex_);
  return rpc::when_all(std::exchange(closing_, {}));
}

Device Devices::of(c10::Device device) {
  rpc::MutexLock loading(loading_);
  const auto pool = background();
  {
    rpc::MutexLock lock(mutex_);
    if (const auto found = made_.find(device); found != made_.end()) return found->second;
  }
  if (api_ == nullptr) {
    api_ = options_.load ? options_.load() : Api::load();
    loop_ = std::make_shared<rpc::AsioLoop>();
  }
  rpc::MutexLock lock(mutex_);
  return made_.emplace(device, device_of(device, api_, loop_, pool)).first->second;
}

}  // namespace weft::collectives::nccl
