#include <weft/parallel/collectives/nccl/internal/aborts.h>

#include <weft/parallel/collectives/nccl/internal/device.h>

#include <utility>

namespace weft::collectives::nccl {

void Aborts::add(const Device& device, Take take, Done done) {
  rpc::MutexLock lock(mutex_);
  added_.push_back({std::move(take), std::move(done)});
  start(device);
}

void Aborts::pause() {
  rpc::MutexLock lock(mutex_);
  ++pauses_;
}

void Aborts::resume(const Device& device) {
  rpc::MutexLock lock(mutex_);
  --pauses_;
  start(device);
}

void Aborts::start(const Device& device) {
  if (pauses_ != 0 || added_.empty() || std::exchange(started_, true)) return;
  device.background->post([device] { device.aborts->run(device); });
}

void Aborts::run(const Device& device) {
  std::vector<Abort> aborts;
  {
    rpc::MutexLock lock(mutex_);
    started_ = false;
    if (pauses_ != 0) return;
    aborts.swap(added_);
  }
  std::vector<Comm*> handles;
  for (const Abort& abort : aborts) handles.push_back(abort.take());
  std::vector<Result> results(aborts.size(), Result::success);
  const auto why = device.try_within([&] {
    device.api->group_start();
    for (std::size_t i = 0; i < handles.size(); ++i)
      if (handles[i] != nullptr) results[i] = device.api->comm_abort(handles[i]);
    const Result ended = device.api->group_end();
    for (Result& result : results)
      if (result == Result::success) result = ended;
  });
  for (std::size_t i = 0; i < aborts.size(); ++i)
    if (handles[i] != nullptr && aborts[i].done) aborts[i].done(results[i], why);
}

}  // namespace weft::collectives::nccl
