#include <weft/rpc/transport/in_process.h>

#include <deque>
#include <optional>
#include <utility>

namespace weft::rpc {
namespace {

// One end. send() posts the frame to the other end's loop. Each end is accessed only on its own loop.
class InProcessConnection final : public Connection,
                                  public std::enable_shared_from_this<InProcessConnection> {
 public:
  InProcessConnection(std::shared_ptr<Loop> loop, const ConnectionOptions& options, std::string description)
      : loop_(std::move(loop)), options_(options), description_(std::move(description)) {}

  static void join(const std::shared_ptr<InProcessConnection>& a,
                   const std::shared_ptr<InProcessConnection>& b) {
    a->other_ = b;
    b->other_ = a;
  }

  const std::shared_ptr<Loop>& loop() const override { return loop_; }
  std::string describe() const override { return description_; }
  std::optional<HostPair> hosts() const override { return HostPair{}; }
  bool in_process() const override { return true; }

  void start(std::shared_ptr<ConnectionObserver> observer) override {
    observer_ = std::move(observer);
    while (!early_.empty()) {
      InboundFrame frame = std::move(early_.front());
      early_.pop_front();
      deliver(std::move(frame));
    }
    if (closed_) report();
  }

  void send(OutboundFrame&& frame) override {
    if (closed_) return;
    if (auto other = other_.lock()) {
      try {
        other->loop_->post(
            [other, inbound = other->take(frame)]() mutable { other->arrive(std::move(inbound)); });
      } catch (const Error& bad) {
        other->loop_->post([other, bad] { other->close(bad); });
      }
    }
    if (frame.sent) loop_->post(std::move(frame.sent));
  }

  std::uint64_t received_bytes() const override { return received_bytes_; }

  void finish(const Error& reason) override { close(reason); }  // frames that were sent are already posted

  void close(const Error& reason) override {
    if (closed_) return;
    early_.clear();
    end(reason);
    if (auto other = other_.lock())
      other->loop_->post(
          [other] { other->end(Error(ErrorKind::peer_lost, "the other side closed the connection")); });
  }

 private:
  // Converts a frame that the other side sends into what arrives here; runs on the sender's loop. Checks as
  // over a socket, and copies the attachments.
  InboundFrame take(const OutboundFrame& frame) const {
    const auto prefix_bytes = frame.head.bytes().first<Prefix::size>();
    InboundFrame inbound;
    inbound.prefix = decode(prefix_bytes, options_.limits);
    inbound.header =
        Buffer(frame.head.owner(), frame.head.data() + Prefix::size, frame.head.size() - Prefix::size);
    check_header(inbound.prefix, prefix_bytes, inbound.header.bytes(), options_.limits);
    for (const Buffer& attachment : frame.attachments)
      inbound.attachments.push_back(Buffer::copy(attachment.bytes()));
    return inbound;
  }
  void arrive(InboundFrame&& frame) {
    if (closed_) return;
    received_bytes_ += Prefix::size + frame.header.size() + frame.prefix.body_bytes;
    if (observer_ == nullptr) {
      early_.push_back(std::move(frame));
    } else {
      deliver(std::move(frame));
    }
  }
  void deliver(InboundFrame&& frame) {
    auto observer = observer_;
    try {
      observer->on_frame(std::move(frame));
    } catch (const Error& bad) {
      close(bad);
    } catch (const std::exception& fault) {
      close(Error(ErrorKind::internal, fault.what()));
    }
  }
  void end(const Error& reason) {
    if (closed_) return;
    closed_ = reason;
    if (observer_ != nullptr) loop_->post([self = shared_from_this()] { self->report(); });
  }
  void report() {
    if (auto observer = std::exchange(observer_, nullptr)) observer->on_closed(*closed_);
  }

  std::shared_ptr<Loop> loop_;
  ConnectionOptions options_;
  std::string description_;
  std::weak_ptr<InProcessConnection> other_;
  std::shared_ptr<ConnectionObserver> observer_;
  std::deque<InboundFrame> early_;  // arrived before start()
  std::optional<Error> closed_;
  std::uint64_t received_bytes_ = 0;
};

}  // namespace

struct InProcess::Entry {
  PickLoop pick;
  ConnectionOptions options;
  Accepted accepted;
};

std::shared_ptr<InProcess::Entry> InProcess::find(const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : found->second;
}

void InProcess::connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
                        Connected done) {
  auto entry = find(address.path);
  auto their_loop = entry == nullptr ? nullptr : entry->pick();
  if (their_loop == nullptr) {
    loop->post([done = std::move(done), target = address.text()]() mutable {
      done(cannot_connect(target, "no agent listens there", Refusal::on_this_host));
    });
    return;
  }
  auto here = std::make_shared<InProcessConnection>(loop, options, "inproc -> " + address.path);
  auto there = std::make_shared<InProcessConnection>(std::move(their_loop), entry->options,
                                                     "inproc <- " + address.path);
  InProcessConnection::join(here, there);
  // The pending jobs of each end keep it alive until its owner holds it.
  there->loop()->post([self = shared_from_this(), name = address.path, entry, there] {
    if (self->find(name) == entry) {
      entry->accepted(there);
    } else {
      there->close(Error(ErrorKind::shut_down, "the listener closed"));
    }
  });
  loop->post([done = std::move(done), here]() mutable { done(std::static_pointer_cast<Connection>(here)); });
}

std::unique_ptr<Listener> InProcess::listen(const Address& address, PickLoop pick,
                                            const ConnectionOptions& options, bool, Accepted accepted) {
  auto entry = std::make_shared<Entry>(Entry{std::move(pick), options, std::move(accepted)});
  MutexLock lock(mutex_);
  if (!entries_.emplace(address.path, std::move(entry)).second)
    throw Error(ErrorKind::already_exists, address.text() + ": address in use");
  return std::make_unique<Listener>(address, [self = shared_from_this(), name = address.path] {
    std::shared_ptr<Entry> removed;  // destroyed without the mutex
    MutexLock lock(self->mutex_);
    removed.swap(self->entries_[name]);
    self->entries_.erase(name);
  });
}

}  // namespace weft::rpc
