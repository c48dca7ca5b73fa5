#include <weft/parallel/tensor_parallel/internal/overlapped_group.h>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::tensor_parallel {

using training::CommunicationStream;

void OverlappedGroup::InFlight::finish() {
  if (!ended_ || future_.ready()) group_.wait(std::move(future_));
  if (ended_) ended_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

std::shared_ptr<CommunicationStream> OverlappedGroup::stream_after_current(c10::Device device) {
  std::shared_ptr<CommunicationStream> stream;
  {
    const rpc::MutexLock lock(mutex_);
    auto& kept = streams_[device];
    if (kept == nullptr) kept = std::make_shared<CommunicationStream>(device);
    stream = kept;
  }
  if (const auto written = CommunicationStream::written(device)) stream->follow(*written);
  return stream;
}

}  // namespace weft::tensor_parallel
