// CommunicationStream: a stream of a device on which collectives run at the same time as computations on
// other streams.
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

namespace weft::training {

class WEFT_EXPORT CommunicationStream {
 public:
  // A stream of LibTorch's pool, unless the device is the CPU.
  explicit CommunicationStream(c10::Device device);

  // Records that the current stream of the device writes data that collectives will read.
  void note_writer();
  // Later work on this stream starts after all writes for which note_writer() was called.
  void follow_writers();
  // written(): an event after all work that is enqueued on the current stream of the device so far; nullopt
  // on the CPU. Any thread may call written(). follow(): later work on this stream starts after the event.
  static std::optional<c10::Event> written(c10::Device device);
  void follow(const c10::Event& written) const { written.block(*stream_); }
  // Later work on the current stream starts after all work that is enqueued on this stream so far.
  void begin_reads() const;
  // Blocks until the device has completed all work that is enqueued on the current stream so far.
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
  std::optional<c10::Stream> writer_;  // the latest writer; this stream already follows the earlier writers
};

}  // namespace weft::training
