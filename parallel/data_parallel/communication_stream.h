// CommunicationStream: the stream of a device on which collectives run next to what other streams compute.
//
//   communication.note_writer();       // after a part of the tensor was written on the current stream
//   communication.follow_writers();    // all parts are written
//   auto done = communication.run([&] { return group.all_reduce(tensor); });
//   done.get();
//   communication.begin_reads();       // the current stream reads what run() computed
//
// On the CPU all of this does nothing. Not thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <optional>
#include <utility>

namespace weft::data_parallel {

class WEFT_EXPORT CommunicationStream {
 public:
  // A stream of LibTorch's pool, unless the device is the CPU.
  explicit CommunicationStream(c10::Device device);

  // The current stream of the device writes what collectives will read.
  void note_writer();
  // Later work on this stream starts after what all writers have been given so far.
  void follow_writers();
  // What the current stream of the device has been given so far, on any thread; none on the CPU. Later work
  // on this stream starts after it.
  static std::optional<c10::Event> written(c10::Device device);
  void follow(const c10::Event& written) const { written.block(*stream_); }
  // Later work on the current stream starts after what this stream has been given so far.
  void begin_reads() const;
  // Waits until the device has done what the current stream has been given so far.
  void synchronize_current() const;

  // Calls f with this stream as the current one of its device.
  template <class F>
  decltype(auto) run(F&& f) const {
    const c10::OptionalStreamGuard guard(stream_);
    return std::forward<F>(f)();
  }

 private:
  c10::Stream current() const;

  std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> writer_;  // the latest one; those before it are followed
};

}  // namespace weft::data_parallel
