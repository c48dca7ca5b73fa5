#include <weft/parallel/collectives/nccl/internal/memory.h>

namespace weft::collectives::nccl {
namespace {

using rpc::Error;
using rpc::ErrorKind;

template <class F>
void when_quiet_now(const Device& device, const char* what, F&& f) {
  if (!device.order->if_quiet(std::forward<F>(f)))
    throw Error(
        ErrorKind::failed_precondition,
        std::string("NCCL: ") + what + " while work is in flight on the device, expected none: wait for it");
}

}  // namespace

std::shared_ptr<void> allocate(const Device& device, std::size_t bytes) {
  void* memory = nullptr;
  Result result = Result::success;
  when_quiet_now(device, "memory is allocated",
                 [&] { device.run_within([&] { result = device.api->mem_alloc(&memory, bytes); }); });
  if (result != Result::success)
    throw Error(
        ErrorKind::resource_exhausted,
        error_of(*device.api, result, nullptr, "allocating " + std::to_string(bytes) + " bytes").what());
  return {memory, [device](void* given) {
            device.order->when_quiet(
                [device, given] { (void)device.try_within([&] { device.api->mem_free(given); }); });
          }};
}

std::shared_ptr<void> register_memory(const Communicator::Ptr& communicator, std::shared_ptr<void> memory,
                                      std::size_t bytes) {
  const Device& device = communicator->device();
  void* handle = nullptr;
  std::optional<Error> failed;
  when_quiet_now(device, "memory is registered", [&] {
    const bool called = communicator->inside([&](Comm* comm) {
      const Result result = device.api->comm_register(comm, memory.get(), bytes, &handle);
      if (result != Result::success && result != Result::in_progress)
        failed = error_of(*device.api, result, comm, "registering memory");
    });
    if (!called) failed = communicator->failure();
  });
  if (failed) throw Error(*failed);
  return {handle, [weak = std::weak_ptr(communicator), order = device.order, memory](void* given) {
            order->when_quiet([weak, given, memory] {
              const auto alive = weak.lock();
              if (alive == nullptr) return;  // NCCL released it with the communicator
              (void)rpc::capture([&] {
                return alive->inside([&](Comm* comm) { alive->device().api->comm_deregister(comm, given); });
              });
            });
          }};
}

}  // namespace weft::collectives::nccl
