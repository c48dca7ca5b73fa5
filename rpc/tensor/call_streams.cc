#include <weft/rpc/tensor/call_streams.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace weft::tensor {
namespace {

class StreamContext final : public rpc::ContextSwitch {
 public:
  explicit StreamContext(std::shared_ptr<CallStreams> streams) : streams_(std::move(streams)) {}
  void enter() override { streams_->enter(); }
  void leave() override { streams_->leave(); }

 private:
  std::shared_ptr<CallStreams> streams_;
};

}  // namespace

CallStreams::CallStreams(const std::vector<c10::Device>& devices) {
  for (const c10::Device device : devices)
    streams_.push_back(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
}

void CallStreams::enter() {
  for (const c10::Stream& stream : streams_)
    outside_.push_back(c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream));
}

void CallStreams::leave() {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const c10::impl::VirtualGuardImpl devices(streams_[i].device_type());
    streams_[i] = devices.exchangeStream(outside_[i]);
  }
  outside_.clear();
  for (const c10::Stream& stream : streams_) {
    try {
      stream.synchronize();
    } catch (const c10::Error&) {
      // The device has failed. The next use, for example the copy of a result, reports it again.
    }
  }
}

std::unique_ptr<rpc::ContextSwitch> make_stream_context(std::shared_ptr<CallStreams> streams) {
  return std::make_unique<StreamContext>(std::move(streams));
}

}  // namespace weft::tensor
