// The stream has no thread. While the loop polls (awake_), poll() runs each requested job whose ring is
// ready. Before the loop blocks, and always on a loop that does not poll, ask_to_be_woken() sets the flags in
// the rings; the other process then writes a byte (a knock) to the socket, and waited() runs the jobs.
#include <weft/rpc/transport/shm/shm_stream.h>

#include <weft/rpc/transport/shm/ring.h>

#include <asio/error.hpp>

#include <poll.h>
#include <sys/socket.h>

#include <array>

namespace weft::rpc {
namespace {

class ShmStream final : public ByteStream, public LoopPoller, public BulkAccess, private Doorbell {
 public:
  ShmStream(ShmEnds ends, std::shared_ptr<Loop> loop)
      : loop_(std::move(loop)),
        ends_(std::move(ends)),
        writer_(ends_.outbound, *this),
        reader_(ends_.inbound, *this),
        awake_(loop_->spins()) {
    asio::error_code ignored;
    ends_.socket.native_non_blocking(true, ignored);
    ends_.outbound.close_descriptor();
    ends_.inbound.close_descriptor();
    if (awake_) loop_->add_poller(*this);
    auto jobs = std::make_shared<Jobs>(Jobs{.stream = this});
    jobs_ = jobs.get();
    jobs_alive_ = jobs;
    await_knock(std::move(jobs));
  }
  ~ShmStream() override { ShmStream::close(); }

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override {
    return reader_.read(into, error);
  }
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override {
    if (gone_ || ended_) {
      error = asio::error::broken_pipe;
      return 0;
    }
    return writer_.write(from, error);
  }
  void when_readable(Callback job) override { await(&Jobs::readable, std::move(job)); }
  void when_writable(Callback job) override { await(&Jobs::writable, std::move(job)); }
  void shut_down_writing(std::error_code&) override {
    if (!std::exchange(ended_, true)) writer_.end();
  }

  void close() override {
    if (jobs_ == nullptr) return;
    std::error_code ignored;
    ShmStream::shut_down_writing(ignored);
    jobs_ = nullptr;
    loop_->remove_poller(*this);
    ends_.socket.close(ignored);
    // Unmap now: the closed stream may be kept for a long time.
    const ShmSegment unmapped[] = {std::move(ends_.outbound), std::move(ends_.inbound)};
    ends_.memory.reset();
    ends_.kept.reset();
    const auto kept = std::move(kept_jobs_);
    if (const auto jobs = jobs_alive_.lock()) {
      jobs->stream = nullptr;
      const Jobs dropped = std::move(*jobs);  // last: the jobs may own this stream
    }
  }

  std::string describe() const override { return ends_.description; }
  std::string identity() const override { return ends_.identity; }
  std::optional<HostPair> hosts() const override { return HostPair{}; }
  std::string explain(const std::error_code& error) const override {
    return error == std::errc::protocol_error ? "the other side wrote malformed data into the shared memory"
                                              : error.message();
  }
  BulkAccess* bulk() override { return ends_.memory ? this : nullptr; }

  // --- BulkAccess ---

  BulkRange range() const override { return ends_.bulk; }
  void pull(std::uint64_t address, std::span<std::byte> into, std::error_code& error) override {
    ends_.memory->read(address, into, error);
    // A sender that closes its stream may reuse the memory, but it closes the socket first. So check the
    // socket for its end; a read of the next byte would not do, because knocks may precede the end.
    pollfd socket{ends_.socket.native_handle(), POLLRDHUP, 0};
    if (!error && ::poll(&socket, 1, 0) != 0) error = asio::error::connection_reset;
  }
  void acknowledge() override { reader_.acknowledge(); }
  std::uint64_t acknowledged() const override { return seen_acknowledged_ = writer_.acknowledged(); }
  void when_acknowledged(Callback job) override { await(&Jobs::acknowledged, std::move(job)); }

  // --- LoopPoller ---

  bool poll() override { return run_due(); }
  bool expects_soon() const override { return jobs_ != nullptr && jobs_->acknowledged; }
  bool fall_asleep() override {
    awake_ = false;
    if (ask_to_be_woken()) return true;
    wake_up();
    return false;
  }
  void wake_up() override {
    awake_ = true;
    reader_.wake_up();
    writer_.wake_up();
  }

 private:
  // The requested jobs. The wait for a knock, which is pending or running, owns them, as the socket owns the
  // jobs in other streams. So if the program destroys its io_context, the wait and the jobs are destroyed,
  // too. Posted jobs and the wait find the stream here, because they may run after it has been destroyed.
  struct Jobs {
    Callback readable, writable, acknowledged;
    ShmStream* stream;  // null: it is closed
  };

  bool readable_due() const { return jobs_->readable && reader_.readable(); }
  bool writable_due() const { return jobs_->writable && (gone_ || writer_.writable()); }
  bool acknowledged_due() const {
    return jobs_->acknowledged && writer_.acknowledged() != seen_acknowledged_;
  }
  void await(Callback Jobs::* slot, Callback job) {
    if (jobs_ == nullptr) return;
    jobs_->*slot = std::move(job);
    expect();
  }

  // Runs each job at most once: a job that it requests again runs next time.
  bool run_due() {
    const bool readable = readable_due(), writable = writable_due(), acknowledged = acknowledged_due();
    if (!readable && !writable && !acknowledged) return false;
    const auto jobs = jobs_alive_.lock();  // a job may close or destroy the stream
    running_ = true;
    if (readable) run(*jobs, &Jobs::readable);
    if (writable) run(*jobs, &Jobs::writable);
    if (acknowledged) run(*jobs, &Jobs::acknowledged);
    if (jobs->stream != nullptr) running_ = false;
    return true;
  }
  static void run(Jobs& jobs, Callback Jobs::* slot) {
    if (jobs.stream == nullptr) return;  // an earlier job has closed it
    if (Callback job = std::move(jobs.*slot)) job();
  }

  // A job was requested. On a loop that polls, poll() finds it. Otherwise settle() follows run_due().
  void expect() {
    if (!awake_ && !running_ && !ask_to_be_woken()) settle_soon();
  }
  bool ask_to_be_woken() {  // false: a job is ready to run
    bool quiet = true;
    if (jobs_->readable) quiet &= reader_.fall_asleep();
    if (jobs_->writable) quiet &= !gone_ && writer_.fall_asleep();
    if (jobs_->acknowledged) quiet &= writer_.await_acknowledgement(seen_acknowledged_);
    return quiet;
  }
  void settle() {
    const auto jobs = jobs_alive_.lock();
    run_due();
    if (jobs->stream != nullptr && !awake_ && !ask_to_be_woken()) settle_soon();
  }
  void settle_soon() {
    if (std::exchange(settling_, true)) return;
    loop_->post([weak = jobs_alive_] {
      const auto jobs = weak.lock();
      if (jobs == nullptr || jobs->stream == nullptr) return;
      jobs->stream->settling_ = false;
      jobs->stream->settle();
    });
  }

  // One wait is always pending: for a knock, and for the end of the socket.
  void await_knock(std::shared_ptr<Jobs> jobs) {
    ends_.socket.async_wait(
        asio::socket_base::wait_read,
        [weak = std::weak_ptr(loop_), jobs = std::move(jobs)](const asio::error_code& error) mutable {
          const auto loop = weak.lock();
          if (loop == nullptr) return;
          // In a turn, because another thread's turn may have closed the stream after the wait had completed.
          loop->run_turn([&] {
            if (auto* const stream = jobs->stream) stream->waited(error, std::move(jobs));
          });
        });
  }
  void waited(const asio::error_code& error, std::shared_ptr<Jobs> jobs) {
    if (!error) {
      std::array<std::byte, 64> knocks;
      const ssize_t bytes = ::recv(ends_.socket.native_handle(), knocks.data(), knocks.size(), MSG_DONTWAIT);
      if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        gone_ = true;
        reader_.abandon();
      }
      settle();
      if (jobs->stream == nullptr) return;
    }
    if (error || gone_) {
      kept_jobs_ = std::move(jobs);
    } else {
      await_knock(std::move(jobs));
    }
  }
  // If the socket is full of knocks, another one is not needed. If it has ended, there is no process to wake.
  void ring() override {
    const std::byte knock{1};
    (void)::send(ends_.socket.native_handle(), &knock, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  const std::shared_ptr<Loop> loop_;
  ShmEnds ends_;
  RingWriter writer_;
  RingReader reader_;
  Jobs* jobs_ = nullptr;  // null: the stream is closed
  std::weak_ptr<Jobs> jobs_alive_;
  std::shared_ptr<Jobs> kept_jobs_;              // when no wait is pending
  mutable std::uint64_t seen_acknowledged_ = 0;  // the last result of acknowledged()
  bool awake_;             // the loop polls; otherwise the other side has been asked to knock
  bool running_ = false;   // jobs are running
  bool settling_ = false;  // settle() has been posted
  bool ended_ = false;     // this side's direction
  bool gone_ = false;      // the other process or its stream has ended
};

}  // namespace

std::unique_ptr<ByteStream> make_shm_stream(ShmEnds ends, std::shared_ptr<Loop> loop) {
  return std::make_unique<ShmStream>(std::move(ends), std::move(loop));
}

}  // namespace weft::rpc
