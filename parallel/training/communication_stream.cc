#include <weft/parallel/training/communication_stream.h>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace weft::training {
namespace {

using c10::impl::VirtualGuardImpl;

c10::Stream current_of(c10::Device device) { return VirtualGuardImpl(device.type()).getStream(device); }

// Later work on `second` starts after all work that is enqueued on `first` so far.
void order(const c10::Stream& first, const c10::Stream& second) {
  c10::Event reached(first.device_type());
  reached.record(first);
  reached.block(second);
}

}  // namespace

CommunicationStream::CommunicationStream(c10::Device device) {
  if (!device.is_cpu()) stream_ = VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

c10::Stream CommunicationStream::current() const { return current_of(stream_->device()); }

std::optional<c10::Event> CommunicationStream::written(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  std::optional<c10::Event> event(device.type());
  event->record(current_of(device));
  return event;
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

}  // namespace weft::training
