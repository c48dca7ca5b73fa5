// OverlappedGroup: starts collectives of a group that run while the calling thread computes.
//
//   auto reduction = ranks->start(tensor.device(),
//                                 [&](const auto& group) { return group.all_reduce(tensor); });
//   ...                     // computes something else
//   reduction.finish();     // the tensor is reduced; on a device: for later work on the current stream
//
// On the CPU, collectives run on the group's threads; on a device, on one stream of this object. Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/training/communication_stream.h>
#include <weft/rpc/core/mutex.h>

#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

namespace weft::tensor_parallel {

class OverlappedGroup {
 public:
  class InFlight {
   public:
    InFlight(collectives::Group group, rpc::Future<void> future, c10::Device device)
        : group_(std::move(group)),
          future_(std::move(future)),
          device_(device),
          ended_(training::CommunicationStream::written(device)) {}
    // Call it once. Throws the group's error; on a device, only an error that is already known.
    void finish();

   private:
    collectives::Group group_;
    rpc::Future<void> future_;
    c10::Device device_;
    std::optional<c10::Event> ended_;  // recorded behind the collective, on the collective's stream
  };

  explicit OverlappedGroup(collectives::Group group) : group_(std::move(group)) {}
  const collectives::Group& group() const { return group_; }

  // begin(group): starts a collective, of tensors that the current stream of the device has written.
  template <class F>
  InFlight start(c10::Device device, F&& begin) {
    return stream_after_current(device)->run(
        [&] { return InFlight(group_, std::forward<F>(begin)(group_), device); });
  }

 private:
  std::shared_ptr<training::CommunicationStream> stream_after_current(c10::Device device);

  const collectives::Group group_;
  rpc::Mutex mutex_;
  std::unordered_map<c10::Device, std::shared_ptr<training::CommunicationStream>> streams_
      WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::tensor_parallel
