// libcurl names the sockets and the time that it waits for (on_socket(), on_timer()). Asio waits for these,
// and act() reports each event to libcurl. `done` functions run in act() after libcurl has returned, because
// libcurl does not allow its callbacks to add or remove transfers.
#include <weft/rpc/job/store/internal/curl_multi.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/core/while_alive.h>

#include <asio/posix/stream_descriptor.hpp>

#include <fcntl.h>
#include <unistd.h>

namespace weft::rpc::detail {

// Waits on a duplicate of libcurl's socket: libcurl 7.88 closes a socket that is still connecting before it
// reports CURL_POLL_REMOVE, and then another thread's new descriptor may already have the number.
struct CurlMulti::Watched {
  explicit Watched(asio::io_context& context) : descriptor(context) {}
  ~Watched() { close(); }
  bool open(curl_socket_t socket) {
    const int duplicate = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    if (duplicate < 0) return false;
    asio::error_code error;
    descriptor.assign(duplicate, error);
    if (error) ::close(duplicate);
    return !error;
  }
  // Not descriptor.close(): it leaves the duplicate to epoll, which keeps it while libcurl's socket is open.
  void close() {
    if (descriptor.is_open()) ::close(descriptor.release());
  }

  asio::posix::stream_descriptor descriptor;
  int wanted = CURL_POLL_NONE;  // CURL_POLL_IN, CURL_POLL_OUT, or both
  int waiting = CURL_POLL_NONE;
};

CurlMulti::CurlMulti(std::shared_ptr<Loop> loop)
    : loop_(std::move(loop)), context_(io_context_of(*loop_)), multi_(curl_multi_init()) {
  if (multi_ == nullptr) throw std::bad_alloc();
  curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, &on_socket);
  curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
  curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, &on_timer);
  curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
}

CurlMulti::~CurlMulti() {
  for (const auto& [transfer, done] : transfers_) curl_multi_remove_handle(multi_, transfer);
  curl_multi_cleanup(multi_);
  if (timer_ != 0) loop_->cancel(timer_);
}

void CurlMulti::start(CURL* transfer, Done done) {
  transfers_.emplace(transfer, std::move(done));
  curl_multi_add_handle(multi_, transfer);
}

void CurlMulti::stop(CURL* transfer) {
  if (transfers_.erase(transfer) != 0) curl_multi_remove_handle(multi_, transfer);
}

int CurlMulti::on_socket(CURL*, curl_socket_t socket, int wanted, void* self, void*) noexcept {
  auto& multi = *static_cast<CurlMulti*>(self);
  if (wanted == CURL_POLL_REMOVE) {
    // Close the duplicate now, although a handler may still refer to it: the connection ends only when the
    // duplicate is closed, too.
    if (const auto found = multi.sockets_.extract(socket)) found.mapped()->close();
    return 0;
  }
  auto& watched = multi.sockets_[socket];
  if (watched == nullptr) {
    watched = std::make_shared<Watched>(multi.context_);
    if (!watched->open(socket)) {
      multi.sockets_.erase(socket);
      return -1;  // all transfers fail
    }
  }
  watched->wanted = wanted;
  multi.wait(socket, watched);
  return 0;
}

int CurlMulti::on_timer(CURLM*, long milliseconds, void* self) noexcept {
  auto& multi = *static_cast<CurlMulti*>(self);
  if (multi.timer_ != 0) multi.loop_->cancel(std::exchange(multi.timer_, 0));
  if (milliseconds < 0) return 0;
  const auto when = multi.loop_->now() + std::chrono::milliseconds{milliseconds};
  multi.timer_ = multi.loop_->schedule(when, while_alive(&multi, [](CurlMulti& here) {
                                         here.timer_ = 0;
                                         here.act(CURL_SOCKET_TIMEOUT, 0);
                                       }));
  return 0;
}

void CurlMulti::wait(curl_socket_t socket, const std::shared_ptr<Watched>& watched) {
  using Descriptor = asio::posix::stream_descriptor;
  for (const bool input : {true, false}) {
    const int direction = input ? CURL_POLL_IN : CURL_POLL_OUT;
    if ((watched->wanted & ~watched->waiting & direction) == 0) continue;
    watched->waiting |= direction;
    watched->descriptor.async_wait(input ? Descriptor::wait_read : Descriptor::wait_write,
                                   [weak = weak_from_this(), socket, input, direction,
                                    same = std::weak_ptr(watched)](const asio::error_code& error) {
                                     const auto self = weak.lock();
                                     const auto ready = same.lock();
                                     if (error || self == nullptr || ready == nullptr) return;
                                     self->loop_->run_turn([&] {
                                       ready->waiting &= ~direction;
                                       if ((ready->wanted & direction) == 0) return;
                                       self->act(socket, input ? CURL_CSELECT_IN : CURL_CSELECT_OUT);
                                       const auto found = self->sockets_.find(socket);
                                       if (found != self->sockets_.end() && found->second == ready)
                                         self->wait(socket, ready);
                                     });
                                   });
  }
}

void CurlMulti::act(curl_socket_t socket, int event) {
  const auto self = shared_from_this();  // keeps this object while a `done` runs
  int number = 0;
  curl_multi_socket_action(multi_, socket, event, &number);
  while (const CURLMsg* message = curl_multi_info_read(multi_, &number)) {
    if (message->msg != CURLMSG_DONE) continue;
    CURL* const transfer = message->easy_handle;
    const CURLcode result = message->data.result;
    const auto found = transfers_.find(transfer);
    Done done = std::move(found->second);
    stop(transfer);
    done(result);
  }
}

}  // namespace weft::rpc::detail
