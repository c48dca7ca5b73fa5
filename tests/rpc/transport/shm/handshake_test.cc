// The handshake against itself, and against a peer that a test plays by hand.
#include <weft/rpc/transport/shm/handshake.h>

#include <weft/rpc/transport/shm/ring.h>

#include <asio/error.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include <cstring>
#include <random>

#include "tests/support/errors.h"
#include "tests/support/leaks.h"
#include "tests/support/shm.h"

namespace weft::rpc::handshake_test {
namespace {

using namespace test;

// The other end of the socket, which the test controls.
class Peer {
 public:
  explicit Peer(int socket) : socket_(socket) {}

  void send(std::span<const std::byte> bytes, const std::vector<int>& descriptors = {}) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(sizeof(int) * descriptors.size()));
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
      std::memcpy(CMSG_DATA(header), descriptors.data(), sizeof(int) * descriptors.size());
    }
    // The other side may have closed already.
    (void)::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  }

  // The victim's hello and segment.
  ShmHello receive_hello() {
    ShmHello::Bytes bytes;
    iovec part{bytes.data(), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_WAITALL) != ssize_t{ShmHello::size})
      throw std::runtime_error("no hello");
    int number = -1;
    std::memcpy(&number, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof number);
    segment = ShmSegment::open(Descriptor(number), ShmSegment::largest);
    hello = ShmHello::decode(bytes);
    return hello;
  }
  std::uint64_t receive(ShmAnswer::Kind kind) {
    ShmAnswer::Bytes bytes;
    if (::recv(socket_.get(), bytes.data(), bytes.size(), MSG_WAITALL) != ssize_t{ShmAnswer::size})
      throw std::runtime_error("no message");
    return ShmAnswer::decode(kind, bytes);
  }
  void close() { socket_.reset(); }

  ShmHello hello;  // the victim's
  std::optional<ShmSegment> segment;

 private:
  Descriptor socket_;
};

class HandshakeTest : public testing::Test {
 protected:
  using Made = Result<std::unique_ptr<ByteStream>>;

  void TearDown() override {
    for (auto& stream : streams_) on(*loop_, [&] { stream.reset(); });
    peer_.reset();
    on(*loop_, [] {});  // notifications of cancelled operations have run
    before_.expect_the_same();
  }

  // Creates a socket pair: one end for the handshake, the other for the test.
  Peer& meet(const ShmOptions& options = {}) {
    const auto ends = test::socket_pair();
    peer_.emplace(ends[1]);
    made_ = greet(ends[0], loop_, options);
    return *peer_;
  }
  ByteStream& stream() { return *streams_.emplace_back(made_->take().get()); }
  std::optional<ErrorKind> refusal() {
    return kind_of([&] { made_->take().get(); });
  }

  static ShmHello hello(bool bulk = false) {
    ShmHello hello;
    hello.bulk = bulk;
    hello.capacity = 64U << 10;
    hello.bulk_begin = 1000;
    return hello;
  }
  static std::string read(ByteStream& stream) {
    std::string text(100, '\0');
    std::error_code error;
    text.resize(stream.read(std::array{std::as_writable_bytes(std::span(text))}, error));
    return text;
  }
  static bool reads_itself() {
    const auto ends = test::socket_pair();
    const Descriptor here(ends[0]), there(ends[1]);
    const auto memory = PeerMemory::of(here.get());
    const auto nonce = PeerMemory::make_nonce();
    return memory && memory->proves(reinterpret_cast<std::uintptr_t>(nonce.data()), nonce);
  }

  std::shared_ptr<Loop> loop_ = std::make_shared<AsioLoop>();
  const ShmSegment ours_ = ShmSegment::create(64U << 10);  // of the hand-written peer
  const test::Leaks before_ = [this] {
    on(*loop_, [] {});
    return test::Leaks();
  }();
  std::optional<Peer> peer_;
  std::shared_ptr<test::Handover<Made>> made_;
  std::vector<std::unique_ptr<ByteStream>> streams_;
};

TEST_F(HandshakeTest, BothSidesAgreeOnTheirOptions) {
  const auto ends = test::socket_pair();
  auto first = greet(ends[0], loop_, {.ring_bytes = 64U << 10, .bulk_begin = 1000, .bulk_end = 9000});
  auto second = greet(ends[1], loop_, {.ring_bytes = 200'000, .bulk_begin = 3000, .bulk_end = 12'000});
  ByteStream& a = *streams_.emplace_back(first->take().get());
  ByteStream& b = *streams_.emplace_back(second->take().get());
  EXPECT_EQ(a.identity(), "uid:" + std::to_string(::geteuid()));
  EXPECT_EQ(a.describe(), "shm test");
  ASSERT_EQ(a.bulk() != nullptr, reads_itself());
  ASSERT_EQ(b.bulk() != nullptr, reads_itself());
  if (a.bulk() != nullptr) {
    EXPECT_EQ(a.bulk()->range(), (BulkRange{3000, 9000}));
    EXPECT_EQ(b.bulk()->range(), (BulkRange{3000, 9000}));
  }
}

TEST_F(HandshakeTest, BulkIsUsedByBothSidesOrNeither) {
  const auto ends = test::socket_pair();
  auto first = greet(ends[0], loop_, {.bulk = false}), second = greet(ends[1], loop_);
  EXPECT_EQ(streams_.emplace_back(first->take().get())->bulk(), nullptr);
  EXPECT_EQ(streams_.emplace_back(second->take().get())->bulk(), nullptr);
}

TEST_F(HandshakeTest, AHandWrittenPeerIsServed) {
  Peer& peer = meet();
  peer.receive_hello();
  EXPECT_EQ(peer.hello.capacity, 1U << 20);
  peer.send(hello().encode(), {ours_.descriptor()});
  ByteStream& made = stream();
  EXPECT_EQ(made.bulk(), nullptr);
  std::error_code error;
  on(*loop_, [&] { made.write(std::array{std::as_bytes(std::span("to you", 6))}, error); });
  EXPECT_EQ(std::memcmp(peer.segment->data(), "to you", 6), 0);
}

TEST_F(HandshakeTest, AHelloMayArriveByteByByteAndBeFollowedByKnocks) {
  Peer& peer = meet();
  const auto bytes = hello().encode();
  peer.send(std::span(bytes).first(1), {ours_.descriptor()});
  for (std::size_t i = 1; i < bytes.size(); ++i) peer.send(std::span(bytes).subspan(i, 1));
  peer.send(std::array<std::byte, 200>{});
  ByteStream& made = stream();
  test::Event readable;
  on(*loop_, [&] { made.when_readable([&] { readable.set(); }); });
  auto& control = *reinterpret_cast<RingControl*>(ours_.control());
  std::memcpy(ours_.data(), "by hand", 7);
  control.writer.position = 7;
  peer.send(std::array<std::byte, 1>{});
  readable.wait();
  on(*loop_, [&] { EXPECT_EQ(read(made), "by hand"); });
}

TEST_F(HandshakeTest, BulkNeedsAProof) {
  if (!reads_itself()) GTEST_SKIP() << "this system lets no process read another's memory";
  PeerMemory::Nonce elsewhere{};
  for (const bool true_proof : {true, false})
    for (const bool verdict : {true, false}) {
      Peer& peer = meet();
      peer.receive_hello();
      ASSERT_TRUE(peer.hello.bulk);
      const ShmHello ours = hello(true);
      peer.send(ours.encode(), {ours_.descriptor()});
      const void* place = true_proof ? &peer.hello.nonce : &elsewhere;
      peer.send(ShmAnswer{ShmAnswer::proof, reinterpret_cast<std::uintptr_t>(place)}.encode());
      const auto proof = peer.receive(ShmAnswer::proof);
      EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(proof), ours.nonce.data(), 16), 0);
      EXPECT_EQ(peer.receive(ShmAnswer::verdict) == 1, true_proof);
      EXPECT_FALSE(made_->given());
      peer.send(ShmAnswer{ShmAnswer::verdict, verdict}.encode());
      EXPECT_EQ(stream().bulk() != nullptr, true_proof && verdict);
    }
}

TEST_F(HandshakeTest, GarbageIsRefused) {
  meet().send(std::array<std::byte, 64>{}, {ours_.descriptor()});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
  auto bytes = hello().encode();
  bytes[17] = std::byte{1};
  meet().send(bytes, {ours_.descriptor()});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
  Peer& peer = meet();  // states another size than that of its segment
  ShmHello liar = hello();
  liar.capacity *= 2;
  peer.send(liar.encode(), {ours_.descriptor()});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
  meet().send(
      std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: a.name.that.is.long.enough.for.it.all\r\n\r\n")));
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
}

TEST_F(HandshakeTest, GarbageInPlaceOfAProofIsRefused) {
  if (!reads_itself()) GTEST_SKIP() << "this system lets no process read another's memory";
  Peer& first = meet();
  first.send(hello(true).encode(), {ours_.descriptor()});
  first.send(std::array<std::byte, 16>{});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
  Peer& second = meet();
  second.send(hello(true).encode(), {ours_.descriptor()});
  second.send(ShmAnswer{ShmAnswer::proof, 1}.encode());
  second.send(ShmAnswer{ShmAnswer::proof, 1}.encode());
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
}

TEST_F(HandshakeTest, AWrongNumberOfDescriptorsIsRefused) {
  const int good = ours_.descriptor();
  meet().send(hello().encode());
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
  for (const std::size_t count : {2U, 3U, 5U, 100U}) {
    meet().send(hello().encode(), std::vector<int>(count, good));
    EXPECT_EQ(refusal(), ErrorKind::protocol_error) << count;
  }
  const auto bytes = hello().encode();
  Peer& twice = meet();
  twice.send(std::span(bytes).first(10), {good});
  twice.send(std::span(bytes).subspan(10), {good});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
  if (!reads_itself()) return;
  Peer& late = meet();
  late.send(hello(true).encode(), {good});
  late.send(ShmAnswer{ShmAnswer::proof, 1}.encode(), {good});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
}

TEST_F(HandshakeTest, MemoryThatIsNotSealedIsRefused) {
  const Descriptor open(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(open.get(), static_cast<off_t>(ShmSegment::page_size() + (64U << 10))), 0);
  meet().send(hello().encode(), {open.get()});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
  meet().send(hello().encode(), {0});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
}

TEST_F(HandshakeTest, ARingThatIsTooLargeIsRefused) {
  const ShmSegment large = ShmSegment::create(128U << 10);
  ShmHello said = hello();
  said.capacity = large.capacity();
  meet({.max_ring_bytes = 64U << 10}).send(said.encode(), {large.descriptor()});
  EXPECT_EQ(refusal(), ErrorKind::protocol_error);
}

TEST_F(HandshakeTest, APeerThatClosesItsSocketIsUnavailable) {
  meet().close();
  EXPECT_EQ(refusal(), ErrorKind::unavailable);
  Peer& half = meet();
  const auto bytes = hello().encode();
  half.send(std::span(bytes).first(20), {ours_.descriptor()});
  half.close();
  EXPECT_EQ(refusal(), ErrorKind::unavailable);
}

TEST_F(HandshakeTest, ASilentPeerTimesOut) {
  const ShmOptions impatient{.timeout = std::chrono::milliseconds{30}};
  meet(impatient);
  EXPECT_EQ(refusal(), ErrorKind::unavailable);
  Peer& half = meet(impatient);
  const auto bytes = hello().encode();
  half.send(std::span(bytes).first(20), {ours_.descriptor()});
  EXPECT_EQ(refusal(), ErrorKind::unavailable);
}

// --- After the handshake ---

TEST_F(HandshakeTest, SpuriousKnocksAreHarmless) {
  Peer& peer = meet();
  peer.receive_hello();
  peer.send(hello().encode(), {ours_.descriptor()});
  ByteStream& made = stream();
  test::Event readable;
  on(*loop_, [&] { made.when_readable([&] { readable.set(); }); });
  for (int i = 0; i < 50; ++i) peer.send(std::array<std::byte, 1000>{}, {0});  // descriptors, too
  auto& control = *reinterpret_cast<RingControl*>(ours_.control());
  std::memcpy(ours_.data(), "at last", 7);
  control.writer.position = 7;
  peer.send(std::array<std::byte, 1>{});
  readable.wait();
  on(*loop_, [&] { EXPECT_EQ(read(made), "at last"); });
}

TEST_F(HandshakeTest, APeerThatWritesRandomlyCanOnlyEndTheStream) {
  for (int i = 0; i < 50; ++i) {
    Peer& peer = meet();
    peer.receive_hello();
    peer.send(hello().encode(), {ours_.descriptor()});
    ByteStream& made = stream();
    test::Event over;
    std::error_code error;
    std::vector<std::byte> memory(10'000);
    std::function<void()> resume_reading = [&] {
      for (error = {}; !error;) (void)made.read(std::array{std::span(memory)}, error);
      if (error == asio::error::would_block) return made.when_readable(resume_reading);
      over.set();
    };
    on(*loop_, resume_reading);
    auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(ours_.control());
    std::mt19937_64 random(static_cast<unsigned>(i));
    // Values that are small enough to be accepted sometimes, and one value that is never accepted.
    for (int j = 0; j < 300; ++j) {
      words[random() % (sizeof(RingControl) / 8)] = random() % (1U << (random() % 20));
      peer.send(std::array<std::byte, 1>{});
    }
    reinterpret_cast<RingControl*>(ours_.control())->writer.position = ~std::uint64_t{0} / 2;
    peer.send(std::array<std::byte, 1>{});
    over.wait();
    EXPECT_TRUE(error == std::errc::protocol_error || error == asio::error::eof) << error.message();
    EXPECT_NE(made.explain(std::make_error_code(std::errc::protocol_error)).find("other side"),
              std::string::npos);
    std::memset(ours_.control(), 0, sizeof(RingControl));
  }
}

TEST_F(HandshakeTest, MayBeAborted) {
  const auto ends = test::socket_pair();
  peer_.emplace(ends[1]);
  std::shared_ptr<ShmHandshake> handshake;
  std::vector<ErrorKind> ends_with;
  on(*loop_, [&] {
    ShmHandshake::Socket socket(static_cast<asio::io_context&>(loop_->context()),
                                asio::local::stream_protocol(), ends[0]);
    handshake = std::make_shared<ShmHandshake>(std::move(socket), loop_, ShmOptions{}, "", [&](Made made) {
      ends_with.push_back(*kind_of([&] { std::move(made).get(); }));
    });
    handshake->begin();
  });
  peer_->receive_hello();
  on(*loop_, [&] {
    handshake->abort();
    handshake->abort();
  });
  handshake.reset();
  EXPECT_EQ(ends_with, std::vector{ErrorKind::shut_down});
}

}  // namespace
}  // namespace weft::rpc::handshake_test
