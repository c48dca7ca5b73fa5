#include <weft/parallel/data_parallel/communication_stream.h>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::data_parallel {
namespace {

using c10::impl::VirtualGuardImpl;

// Later work on `second` starts after what `first` has been given so far.
void order(const c10::Stream& first, const c10::Stream& second) {
  c10::Event reached(first.device_type());
  reached.record(first);
  reached.block(second);
}

}  // namespace

CommunicationStream::CommunicationStream(c10::Device device) {
  if (!device.is_cpu()) stream_ = VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream CommunicationStream::current() const {
  return VirtualGuardImpl(stream_->device_type()).getStream(stream_->device());
}

void CommunicationStream::note_writer() {
  if (!stream_) return;
  const c10::Stream writer = current();
  if (writer_ && *writer_ != writer) order(*writer_, *stream_);
  writer_ = writer;
}

void CommunicationStream::follow_writers() {
  if (writer_) order(*writer_, *stream_);
}

void CommunicationStream::begin_reads() const {
  if (stream_) order(*stream_, current());
}

void CommunicationStream::synchronize_current() const {
  if (stream_) current().synchronize();
}

}  // namespace weft::data_parallel
