// OpenSSL reads and writes a TlsWire, whose buffers decouple it from the lower stream: a write of OpenSSL
// always succeeds at once, and flush() passes the bytes on. write() stops when settings.batch bytes are
// pending.
//
// The handshake runs in step(), which read(), write() and both waits call while the state is `handshake`.
// admit() then checks what OpenSSL does not: the application protocol, the expected agent and the peer's
// name. A fatal error changes the state to `failed`; the alert for the peer is flushed, and its error is
// returned by all later reads and writes.
#include <weft/rpc/transport/tls_stream.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/security/internal/certificate_names.h>
#include <weft/rpc/security/internal/credential_snapshot.h>
#include <weft/rpc/transport/internal/tls_failure.h>
#include <weft/rpc/transport/internal/tls_wire.h>

#include <asio/error.hpp>

#include <array>
#include <cstring>

namespace weft::rpc {
namespace {

// A record of type alert (21) of TLS 1.2: fatal (2), protocol_version (70).
constexpr std::array<unsigned char, 7> refusal_of_plain{21, 3, 3, 0, 2, 2, 70};
constexpr std::size_t record_size = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB

// Divides the spans of a write into records.
class Records {
 public:
  explicit Records(std::span<const std::span<const std::byte>> from) : left_(from) { settle(); }

  bool empty() const { return left_.empty(); }

  // The next record: a part of one span if that is large enough, otherwise several spans copied into
  // `scratch`. A record for each small span would cost more than the copy.
  std::span<const std::byte> next(std::span<std::byte> scratch) {
    constexpr std::size_t worth_a_record = record_size / 2;
    const auto first = rest();
    if (first.size() >= worth_a_record || left_.size() == 1) {
      const auto record = first.first(std::min(first.size(), record_size));
      advance(record.size());
      return record;
    }
    std::size_t filled = 0;
    while (!empty() && filled < scratch.size()) {
      const auto piece = rest().first(std::min(rest().size(), scratch.size() - filled));
      std::memcpy(scratch.data() + filled, piece.data(), piece.size());
      filled += piece.size();
      advance(piece.size());
    }
    return scratch.first(filled);
  }

 private:
  std::span<const std::byte> rest() const { return left_.front().subspan(done_); }
  void advance(std::size_t bytes) {
    done_ += bytes;
    settle();
  }
  void settle() {
    while (!left_.empty() && done_ == left_.front().size()) {
      left_ = left_.subspan(1);
      done_ = 0;
    }
  }

  std::span<const std::span<const std::byte>> left_;
  std::size_t done_ = 0;  // of the first span
};

void check(const ExpectedPeer& expected) {
  if (expected.host.empty() && expected.agent.empty() && !expected.any)
    throw Error(ErrorKind::invalid_argument,
                "a TLS client needs the expected name of the peer: the host of its address, or an agent");
  // OpenSSL interprets a name that begins with a dot as any subdomain.
  if (expected.host.starts_with('.') || (!expected.host.empty() && !is_plain_name(expected.host, 255)) ||
      (!expected.agent.empty() && !is_plain_name(expected.agent, 255)))
    throw Error(ErrorKind::invalid_argument, "no certificate can be for the host '" +
                                                 printable(expected.host) + "', agent '" +
                                                 printable(expected.agent) + "'");
}

class TlsStream final : public ByteStream {
 public:
  TlsStream(std::unique_ptr<ByteStream> lower, const Credentials& credentials,
            std::optional<ExpectedPeer> expected, std::shared_ptr<Loop> loop, TlsSettings settings)
      : server_(!expected),
        loop_(std::move(loop)),
        settings_(settings),
        credentials_(credentials.snapshot()),
        wire_(std::move(lower)),
        alive_(std::make_shared<char>()) {
    if (expected) {
      check(*expected);
      notes_.host = std::move(expected->host);
      notes_.expected_agent = std::move(expected->agent);
    }
    ssl_ = credentials_->make(notes_, server_);
    BIO* bio = wire_.make_bio().release();
    SSL_set_bio(ssl_.get(), bio, bio);
  }
  ~TlsStream() override { TlsStream::close(); }
  void shut_down_writing(std::error_code& error) override {
    error.clear();
    if (state_ == State::failed || state_ == State::closed) {
      usable(error);
      return;
    }
    if (shutdown_requested_) return;
    shutdown_requested_ = true;
    if (state_ == State::handshake) {
      step();
      if (state_ == State::handshake) await_lower(true);
    } else {
      end_own_direction();
      flush();
    }
    if (state_ == State::failed) error = failure_;
  }
  void close() override {
    if (state_ == State::closed) return;
    wire_.flush();  // as much as possible without waiting, for example an alert
    state_ = State::closed;
    alive_.reset();
    wire_.lower().close();
    readable_ = {};
    writable_ = {};
  }
  bool is_network_flow() const override { return wire_.lower().is_network_flow(); }
  void move_to(std::shared_ptr<Loop> loop) override {
    alive_ = std::make_shared<char>();
    readable_ = {};
    writable_ = {};
    awaits_reading_ = awaits_writing_ = wakes_soon_ = false;
    loop_ = std::move(loop);
    wire_.lower().move_to(loop_);
    if (wire_.pending() > 0) await_lower(false);
  }
  std::optional<HostPair> hosts() const override { return wire_.lower().hosts(); }
  std::string describe() const override { return "tls over " + wire_.lower().describe(); }
  std::string explain(const std::error_code& error) const override {
    return error == failure_ && !failure_text_.empty() ? failure_text_ : error.message();
  }

  // --- Bytes ---

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override {
    error.clear();
    if (!usable(error)) return 0;
    ERR_clear_error();
    std::size_t total = 0;
    bool more = !peer_ended_;
    for (auto next = into.begin(); more && next != into.end(); ++next) {
      for (std::span<std::byte> span = *next; more && !span.empty();) {
        std::size_t moved = 0;
        const int result = SSL_read_ex(ssl_.get(), span.data(), span.size(), &moved);
        if (result == 1) {
          total += moved;
          span = span.subspan(moved);
          // Saves one read of the lower stream that would block.
          starved_ = wire_.exhausted() && SSL_has_pending(ssl_.get()) == 0;
          more = !starved_;
          continue;
        }
        more = false;
        cannot_read(result);
      }
    }
    flush();
    if (total > 0) return total;
    if (state_ == State::failed)
      error = failure_;
    else if (peer_ended_)
      error = asio::error::eof;
    else
      error = asio::error::would_block;
    return 0;
  }
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override {
    error.clear();
    if (!usable(error)) return 0;
    if (shutdown_requested_) {
      error = asio::error::broken_pipe;
      return 0;
    }
    ERR_clear_error();
    std::array<std::byte, record_size> scratch;
    std::size_t total = 0;
    for (Records records(from); !records.empty();) {
      if (wire_.pending() >= settings_.batch) flush();
      if (wire_.pending() >= settings_.batch || wire_.write_error()) break;
      const auto record = records.next(scratch);
      if (!encrypt(record)) break;
      total += record.size();
    }
    flush();
    if (state_ == State::open && wire_.write_error()) learn_why_writing_failed();
    if (total > 0) return total;  // the next call returns the error
    if (state_ == State::failed)
      error = failure_;
    else if (wire_.write_error())
      error = wire_.write_error();
    else
      error = asio::error::would_block;
    return 0;
  }
  void when_readable(Callback job) override {
    if (state_ == State::closed) return;
    readable_ = std::move(job);
    if (!started_) step();
    if (readable_now())
      wake_soon();
    else
      await_lower(true);
  }
  void when_writable(Callback job) override {
    if (state_ == State::closed) return;
    writable_ = std::move(job);
    if (!started_) step();
    if (writable_now())
      wake_soon();
    else if (state_ == State::handshake)
      await_lower(true);
    // otherwise flush() waits for the lower stream
  }
  std::string identity() const override { return identity_; }

 private:
  enum class State { handshake, open, failed, closed };

  // --- The handshake and the end ---

  // Drives the handshake; false: sets `error`.
  bool usable(std::error_code& error) {
    if (state_ == State::handshake) step();
    switch (state_) {
      case State::open:
        return true;
      case State::handshake:
        error = asio::error::would_block;
        return false;
      case State::failed:
        error = failure_;
        return false;
      case State::closed:
        error = asio::error::not_connected;
        return false;
    }
    return false;
  }

  void step() {
    started_ = true;
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1)
      admit();
    else if (SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ)
      fail_by_openssl(true);
    flush();
    if (state_ == State::handshake && wire_.write_error()) fail({wire_.write_error(), {}});
    if (state_ != State::handshake) wake_soon();
  }

  // The handshake has completed: checks and stores the peer's identity.
  void admit() {
    const unsigned char* application = nullptr;
    unsigned int size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &application, &size);
    if (std::string_view(reinterpret_cast<const char*>(application), size) != tls_application)
      return fail({TlsError::no_weft, {}});
    if (SSL_session_reused(ssl_.get())) {
      identity_ = "psk:" + notes_.secret;
    } else {
      // The handshake's callbacks have verified the certificate already. These checks protect against a
      // mistake in the callbacks.
      const X509* peer = SSL_get0_peer_certificate(ssl_.get());
      if (peer == nullptr || SSL_get_verify_result(ssl_.get()) != X509_V_OK)
        return fail({TlsError::certificate_missing, {}});
      if (!notes_.expected_agent.empty() && !names_agent(*peer, notes_.expected_agent))
        return fail({TlsError::certificate_for_another, {}});
      const std::string name = proven_name(*peer);
      if (name.empty()) return fail({TlsError::certificate_unfit, {}});
      identity_ = "cert:" + name;
    }
    state_ = State::open;
    if (shutdown_requested_) end_own_direction();
  }

  void end_own_direction() {
    ERR_clear_error();
    if (SSL_shutdown(ssl_.get()) < 0) return fail_by_openssl(false);
    last_written_ = true;
  }

  // OpenSSL sends no alert to a client that does not speak TLS; this alert gives it the reason.
  void fail(TlsFailure failure) {
    if (server_ && failure.code == TlsError::no_tls) wire_.append(std::as_bytes(std::span(refusal_of_plain)));
    state_ = State::failed;
    failure_ = failure.code;
    failure_text_ = std::move(failure.text);
    ERR_clear_error();
    last_written_ = true;  // the alert, which OpenSSL has written to the wire
    flush();
    wire_.discard();
  }

  // A function of OpenSSL has failed permanently.
  void fail_by_openssl(bool in_handshake) {
    auto failure = tls_failure(ssl_.get(), notes_, wire_.first_bytes(), in_handshake);
    if (wire_.read_error()) failure = {wire_.read_error()};
    fail(std::move(failure));
  }

  void flush() {
    wire_.flush();
    if (wire_.pending() > 0) return await_lower(false);
    if (!last_written_ || lower_ended_) return;
    lower_ended_ = true;
    std::error_code ignored;
    wire_.lower().shut_down_writing(ignored);
  }

  bool encrypt(std::span<const std::byte> record) {
    if (++records_ >= settings_.records_per_key) {
      records_ = 0;
      SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);  // is sent before the record
    }
    std::size_t moved = 0;
    if (SSL_write_ex(ssl_.get(), record.data(), record.size(), &moved) == 1 && moved == record.size())
      return true;
    fail_by_openssl(false);
    return false;
  }

  // A peer that refuses this side sends an alert before it closes the connection. The next write may then
  // fail before the alert has been read, so read it here.
  void learn_why_writing_failed() {
    std::byte next;
    std::size_t moved = 0;
    ERR_clear_error();
    const int result = SSL_peek_ex(ssl_.get(), &next, 1, &moved);
    if (result != 1) cannot_read(result);  // otherwise it is data, which the reader should get first
  }

  // result: of a function of OpenSSL that reads.
  void cannot_read(int result) {
    const int why = SSL_get_error(ssl_.get(), result);
    if (why == SSL_ERROR_WANT_READ)
      starved_ = true;
    else if (why == SSL_ERROR_ZERO_RETURN)
      peer_ended_ = true;
    else
      fail_by_openssl(false);
  }

  // --- Waiting ---
  //
  // The lower stream is awaited for the callers that wait here, and for pending bytes. OpenSSL never waits to
  // write. So a reader needs only a readable lower stream, and a writer needs only room in the batch. Only
  // during the handshake does a writer wait for bytes.

  bool readable_now() const {
    return state_ == State::failed || (state_ == State::open && (peer_ended_ || !starved_));
  }

  bool writable_now() const {
    return state_ == State::failed ||
           (state_ == State::open && (wire_.write_error() || wire_.pending() < settings_.batch));
  }

  // Requests a call of the lower stream; at most one of each is pending.
  void await_lower(bool readable) {
    if (state_ == State::closed || std::exchange(readable ? awaits_reading_ : awaits_writing_, true)) return;
    // A wait that has completed still calls its job if the stream is destroyed before the job's turn.
    Callback job = [this, readable, alive = std::weak_ptr(alive_)] {
      if (!alive.expired()) lower_is_ready(readable);
    };
    readable ? wire_.lower().when_readable(std::move(job)) : wire_.lower().when_writable(std::move(job));
  }

  void lower_is_ready(bool readable) {
    (readable ? awaits_reading_ : awaits_writing_) = false;
    if (!readable) flush();
    if (state_ == State::handshake && (readable || wire_.write_error())) step();
    if (state_ == State::handshake && readable) return await_lower(true);
    wake(readable);
  }

  // Posted: no member calls back directly.
  void wake_soon() {
    if ((!readable_ && !writable_) || std::exchange(wakes_soon_, true)) return;
    loop_->post([this, alive = std::weak_ptr(alive_)] {
      if (alive.expired()) return;
      wakes_soon_ = false;
      wake(false);
    });
  }

  void wake(bool readable) {
    Callback reader, writer;
    if (readable_ && (readable || readable_now())) reader = std::exchange(readable_, {});
    if (writable_ && writable_now()) writer = std::exchange(writable_, {});
    const std::weak_ptr alive(alive_);
    if (reader) reader();
    if (writer && !alive.expired()) writer();  // the reader may have closed this stream
  }

  const bool server_;
  std::shared_ptr<Loop> loop_;
  const TlsSettings settings_;
  // ssl_ uses these three members. It is declared after them, so it is destroyed first.
  std::shared_ptr<const CredentialSnapshot> credentials_;
  HandshakeNotes notes_;
  TlsWire wire_;
  openssl::Ssl ssl_;

  State state_ = State::handshake;
  bool started_ = false;
  bool starved_ = false;             // OpenSSL needs bytes, and the lower stream has none to read
  bool peer_ended_ = false;          // the peer's TLS close was received
  bool shutdown_requested_ = false;  // shut_down_writing() was called
  // true: nothing is written after the pending bytes. When the lower stream has accepted these bytes,
  // TlsStream closes the lower stream's own direction.
  bool last_written_ = false;
  bool lower_ended_ = false;
  std::uint64_t records_ = 0;  // the number of records since the last key update
  std::string identity_;
  std::error_code failure_;
  std::string failure_text_;

  Callback readable_, writable_;
  bool awaits_reading_ = false, awaits_writing_ = false, wakes_soon_ = false;
  std::shared_ptr<void> alive_;  // posted jobs check that it exists
};

}  // namespace

std::unique_ptr<ByteStream> make_tls_stream(std::unique_ptr<ByteStream> lower, const Credentials& credentials,
                                            std::optional<ExpectedPeer> expected, std::shared_ptr<Loop> loop,
                                            TlsSettings settings) {
  return std::make_unique<TlsStream>(std::move(lower), credentials, std::move(expected), std::move(loop),
                                     settings);
}

}  // namespace weft::rpc
