// The steps of a handshake, each with the message that it waits for:
//
//   greet()       checks the user, creates this side's segment and sends the hello
//   on_hello()    maps the other side's segment; sends the proof if both sides offer bulk
//   on_proof()    tries to read this side's nonce in the other process; sends the verdict
//   on_verdict()  uses bulk if each side can read the other's memory
//
// Then succeed() passes everything to the stream.
#include <weft/rpc/transport/shm/handshake.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/transport/internal/unix_socket.h>
#include <weft/rpc/transport/shm/shm_stream.h>

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <vector>

namespace weft::rpc {
namespace {

constexpr std::size_t max_descriptors = 4;  // that are received, in order to close them: one is permitted

Error lost(const std::string& how) {
  return Error(ErrorKind::unavailable, "the other side ended the handshake: " + how, Execution::not_sent);
}

void send_whole(int socket, std::span<const std::byte> bytes, int descriptor = -1) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  // A new socket accepts a hundred bytes at once, otherwise it is defective.
  const ssize_t sent = ::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) throw lost(std::system_category().message(errno));
  if (static_cast<std::size_t>(sent) != bytes.size()) throw lost("its socket accepts no bytes");
}

}  // namespace

ShmHandshake::ShmHandshake(Socket socket, std::shared_ptr<Loop> loop, const ShmOptions& options,
                           std::string description, Done done, std::shared_ptr<void> kept)
    : socket_(std::move(socket)),
      loop_(std::move(loop)),
      options_(options),
      description_(std::move(description)),
      done_(std::move(done)),
      kept_(std::move(kept)) {}

void ShmHandshake::connect(const asio::local::stream_protocol::endpoint& where) {
  socket_.async_connect(where, [self = shared_from_this()](asio::error_code error) {
    self->loop_->run_turn([&] {
      error = connect_result(self->socket_, error);
      if (!error) return self->begin();
      self->fail(
          std::make_exception_ptr(Error(ErrorKind::unavailable, error.message(), Execution::not_sent)));
    });
  });
}

void ShmHandshake::begin() {
  if (!done_) return;  // it was aborted
  timer_ = loop_->schedule_closing(later(loop_->now(), options_.timeout), while_alive(this, [](auto& self) {
                                     self.timer_ = 0;
                                     self.fail(std::make_exception_ptr(lost("the handshake timed out")));
                                   }));
  loop_->post([self = shared_from_this()] { self->attempt(&ShmHandshake::greet); });
}

void ShmHandshake::abort() {
  fail(std::make_exception_ptr(
      Error(ErrorKind::shut_down, "the handshake was cancelled", Execution::not_sent)));
}

void ShmHandshake::greet() {
  const auto user = peer_user(socket_.native_handle());
  if (!user || *user != ::geteuid())
    throw Error(ErrorKind::permission_denied,
                "the other side runs as another user: " + (user ? std::to_string(*user) : "unknown") +
                    ", expected " + std::to_string(::geteuid()),
                Execution::not_sent);
  identity_ = "uid:" + std::to_string(*user);
  if (options_.bulk) memory_ = PeerMemory::of(socket_.native_handle());

  outbound_.emplace(ShmSegment::create(ShmSegment::capacity_for(options_.ring_bytes)));
  own_hello_.bulk = memory_.has_value();
  own_hello_.capacity = outbound_->capacity();
  own_hello_.bulk_begin = std::max<std::size_t>(options_.bulk_begin, 1);
  own_hello_.bulk_end = options_.bulk_end;
  own_hello_.nonce = PeerMemory::make_nonce();
  send_whole(socket_.native_handle(), own_hello_.encode(), outbound_->descriptor());
  outbound_->close_descriptor();
  expect(ShmHello::size, &ShmHandshake::on_hello);
}

void ShmHandshake::on_hello() {
  peer_hello_ = ShmHello::decode(std::span(bytes_).first<ShmHello::size>());
  if (!descriptor_) throw Error(ErrorKind::protocol_error, "a hello without shared memory");
  inbound_.emplace(ShmSegment::open(std::move(descriptor_), options_.max_ring_bytes));
  if (inbound_->capacity() != peer_hello_.capacity)
    throw Error(ErrorKind::protocol_error, "a ring of " + std::to_string(inbound_->capacity()) +
                                               " bytes, and the hello announced " +
                                               std::to_string(peer_hello_.capacity));
  if (!own_hello_.bulk || !peer_hello_.bulk) {
    memory_.reset();
    return succeed();
  }
  const ShmAnswer own_proof{ShmAnswer::proof, reinterpret_cast<std::uintptr_t>(peer_hello_.nonce.data())};
  send_whole(socket_.native_handle(), own_proof.encode());
  expect(ShmAnswer::size, &ShmHandshake::on_proof);
}

void ShmHandshake::on_proof() {
  const auto address = ShmAnswer::decode(ShmAnswer::proof, std::span(bytes_).first<ShmAnswer::size>());
  readable_ = memory_->proves(address, own_hello_.nonce);
  send_whole(socket_.native_handle(), ShmAnswer{ShmAnswer::verdict, readable_}.encode());
  expect(ShmAnswer::size, &ShmHandshake::on_verdict);
}

void ShmHandshake::on_verdict() {
  const auto verdict = ShmAnswer::decode(ShmAnswer::verdict, std::span(bytes_).first<ShmAnswer::size>());
  if (!readable_ || verdict == 0) memory_.reset();
  succeed();
}

// --- Receiving ---

void ShmHandshake::expect(std::size_t bytes, Step next) {
  received_ = 0;
  expected_ = bytes;
  next_ = next;
  await_bytes();
}

void ShmHandshake::await_bytes() {
  socket_.async_wait(Socket::wait_read, [self = shared_from_this()](const asio::error_code& error) {
    if (!error) self->loop_->run_turn([&] { self->attempt(&ShmHandshake::receive); });
  });
}

void ShmHandshake::receive() {
  iovec part{bytes_.data() + received_, expected_ - received_};  // further bytes belong to the stream
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * max_descriptors)];
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket_.native_handle(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
      throw lost(std::system_category().message(errno));
    return await_bytes();
  }
  take_descriptors(message);
  if (got == 0) throw lost("it closed the connection");
  received_ += static_cast<std::size_t>(got);
  if (received_ < expected_) return await_bytes();
  (this->*next_)();
}

// All received descriptors are owned before any is refused, so that none leaks.
void ShmHandshake::take_descriptors(msghdr& message) {
  std::vector<Descriptor> descriptors;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    for (std::size_t at = 0; at + sizeof(int) <= header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header) + at, sizeof number);
      descriptors.emplace_back(number);
    }
  }
  if (descriptors.empty() && (message.msg_flags & MSG_CTRUNC) == 0) return;
  const bool fits = descriptors.size() == 1 && (message.msg_flags & MSG_CTRUNC) == 0;
  if (!fits || descriptor_ || inbound_)
    throw Error(ErrorKind::protocol_error,
                std::to_string(descriptors.size()) + " file descriptors, expected one, with the hello");
  descriptor_ = std::move(descriptors.front());
}

// --- The end ---

void ShmHandshake::attempt(Step step) {
  if (!done_) return;
  std::exception_ptr error;
  try {
    (this->*step)();
  } catch (...) {
    error = std::current_exception();
  }
  if (error != nullptr) fail(std::move(error));  // moved: the receiver becomes the last owner
}

void ShmHandshake::fail(std::exception_ptr error) {
  if (!done_) return;
  loop_->cancel(std::exchange(timer_, 0));
  asio::error_code ignored;
  socket_.close(ignored);
  outbound_.reset();
  inbound_.reset();
  memory_.reset();
  descriptor_.reset();
  kept_.reset();
  Done done = std::move(done_);
  done(std::move(error));
}

void ShmHandshake::succeed() {
  auto stream = make_shm_stream(ShmEnds{std::move(socket_), std::move(*outbound_), std::move(*inbound_),
                                        std::move(memory_), own_hello_.agreed_bulk(peer_hello_),
                                        std::move(description_), std::move(identity_), std::move(kept_)},
                                loop_);
  loop_->cancel(std::exchange(timer_, 0));
  Done done = std::move(done_);
  done(std::move(stream));
}

}  // namespace weft::rpc
