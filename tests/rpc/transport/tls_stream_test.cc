#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/testing/wait.h>
#include <weft/rpc/transport/tls_stream.h>

#include "tests/support/errors.h"
#include "tests/support/raw_tls.h"

#include <array>

namespace weft::test::tls_stream_test {
namespace {

using rpc::Credentials;
using rpc::TlsError;

class TlsStreamTest : public ::testing::Test {
 protected:
  TestAuthority authority_;
  const Credentials server_{authority_.credentials("server")}, client_{authority_.credentials("worker1")};
  const Credentials secret_{secret_options("job7", "a secret of the whole job")};
};

// One write by the owner of a stream.
std::size_t write_once(rpc::ByteStream& stream, std::string_view bytes, std::error_code& error) {
  const std::array from{std::as_bytes(std::span(bytes))};
  return stream.write(from, error);
}
std::error_code write_error(rpc::ByteStream& stream, std::string_view bytes) {
  std::error_code error;
  write_once(stream, bytes, error);
  return error;
}
std::string read_once(rpc::ByteStream& stream, std::error_code& error) {
  std::string bytes(64 << 10, '\0');
  const std::array into{std::as_writable_bytes(std::span(bytes))};
  bytes.resize(stream.read(into, error));
  return bytes;
}

// Two streams without any data yet.
struct Bare {
  Bare(const Credentials& client_credentials, const Credentials& server_credentials, PairOptions options = {},
       rpc::TlsSettings settings = {}) {
    auto ends = PairedStream::make(loop, options);
    client_end = ends.first.get();
    server_end = ends.second.get();
    client = rpc::make_tls_stream(std::move(ends.first), client_credentials,
                                  rpc::ExpectedPeer{.host = "server"}, loop, settings);
    server = rpc::make_tls_stream(std::move(ends.second), server_credentials, std::nullopt, loop, settings);
  }
  // Runs the handshake, which proceeds only because both sides wait.
  void shake_hands() {
    client->when_readable([] {});
    server->when_readable([] {});
    loop->run();
    ASSERT_NE(client->identity(), "");
    ASSERT_NE(server->identity(), "");
  }

  std::shared_ptr<ManualLoop> loop = std::make_shared<ManualLoop>();
  PairedStream *client_end, *server_end;
  std::unique_ptr<rpc::ByteStream> client, server;
};

// --- Bytes ---

TEST_F(TlsStreamTest, BytesArriveInOrderHoweverTheyAreSplit) {
  std::mt19937_64 random(1);
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    PairOptions options{.seed = seed};
    options.max_a_call = std::array<std::size_t, 5>{1, 7, 1000, 40'000, SIZE_MAX}[random() % 5];
    options.capacity = std::array<std::size_t, 3>{100, 5000, 1 << 20}[random() % 3];
    options.would_block_one_in = std::array<unsigned, 3>{0, 2, 10}[random() % 3];
    const std::size_t most = options.max_a_call < 100 ? 20'000 : 400'000;
    const std::string up = some_bytes(random() % most, seed), down = some_bytes(random() % most, seed + 1000);

    const auto loop = std::make_shared<ManualLoop>();
    auto ends = PairedStream::make(loop, options);
    const Credentials& ours = seed % 2 == 0 ? secret_ : client_;
    const Credentials& theirs = seed % 2 == 0 ? secret_ : server_;
    Talker client(
        rpc::make_tls_stream(std::move(ends.first), ours, rpc::ExpectedPeer{.host = "server"}, loop), up,
        true, seed);
    Talker server(rpc::make_tls_stream(std::move(ends.second), theirs, std::nullopt, loop), down, true,
                  seed + 7);
    client.start();
    server.start();
    loop->run();
    ASSERT_EQ(client.received(), down) << "seed " << seed << ": " << client.explained();
    ASSERT_EQ(server.received(), up) << "seed " << seed << ": " << server.explained();
    ASSERT_TRUE(client.ended() && server.ended()) << "seed " << seed;
  }
}

TEST_F(TlsStreamTest, AWakeUpNeedsAWakeUpOfTheLowerStream) {
  TlsPair pair(client_, server_);
  pair.run();
  for (int round = 0; round < 100; ++round) {
    const std::size_t before = pair.server->wake_ups();
    pair.client->send("x");
    const std::size_t jobs = pair.loop->run();
    EXPECT_LE(pair.server->wake_ups() - before, 1u);
    EXPECT_LE(jobs, 2u);
  }
  EXPECT_EQ(pair.server->received(), TlsPair::from_client + std::string(100, 'x'));
  EXPECT_LE(pair.client->wake_ups(), 4u);  // of the handshake alone
}

TEST_F(TlsStreamTest, EitherSideMayEndFirstAndContinueReading) {
  for (const bool client_first : {true, false}) {
    TlsPair pair(client_, server_);
    pair.run();
    Talker& first = client_first ? *pair.client : *pair.server;
    Talker& second = client_first ? *pair.server : *pair.client;
    std::error_code error;
    first.stream().shut_down_writing(error);
    EXPECT_FALSE(error);
    first.stream().shut_down_writing(error);  // once is enough
    EXPECT_FALSE(error);
    pair.loop->run();
    EXPECT_TRUE(second.ended());
    EXPECT_FALSE(first.read_error());
    EXPECT_EQ(write_error(first.stream(), "late"), asio::error::broken_pipe);

    const std::string before = first.received(), more = some_bytes(200'000);
    second.send(more);
    pair.loop->run();
    EXPECT_EQ(first.received(), before + more);
    second.stream().shut_down_writing(error);
    pair.loop->run();
    EXPECT_TRUE(first.ended());
  }
}

TEST_F(TlsStreamTest, AShutdownBeforeTheHandshakeIsSentAfterIt) {
  Bare pair(client_, server_);
  std::error_code error;
  pair.client->shut_down_writing(error);
  EXPECT_FALSE(error);
  pair.server->shut_down_writing(error);
  pair.loop->run();
  read_once(*pair.client, error);
  EXPECT_EQ(error, asio::error::eof);
  read_once(*pair.server, error);
  EXPECT_EQ(error, asio::error::eof);
  EXPECT_EQ(pair.client->identity(), "cert:server");
}

// Bytes that write() has accepted are sent without another write(). write() accepts at most one batch ahead.
TEST_F(TlsStreamTest, AcceptedBytesAreSentWithoutAnotherWrite) {
  const rpc::TlsSettings settings{.batch = 32 << 10};
  Bare pair(client_, server_, {.capacity = 1000}, settings);
  pair.shake_hands();
  const std::string bytes = some_bytes(1 << 20);
  std::error_code error;
  const std::size_t taken = write_once(*pair.client, bytes, error);
  EXPECT_FALSE(error);
  EXPECT_GE(taken, settings.batch);
  EXPECT_LE(taken, settings.batch + 2 * (16 << 10));
  EXPECT_EQ(write_error(*pair.client, "more"), asio::error::would_block);
  pair.client->shut_down_writing(error);

  Talker server(std::move(pair.server), "");
  server.start();
  pair.loop->run();
  EXPECT_TRUE(server.received() == bytes.substr(0, taken));
  EXPECT_TRUE(server.ended());
}

class Counting final : public rpc::ByteStream {
 public:
  explicit Counting(std::unique_ptr<rpc::ByteStream> lower) : lower_(std::move(lower)) {}
  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override {
    ++reads;
    return lower_->read(into, error);
  }
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override {
    ++writes;
    return lower_->write(from, error);
  }
  void when_readable(rpc::Callback job) override { lower_->when_readable(std::move(job)); }
  void when_writable(rpc::Callback job) override { lower_->when_writable(std::move(job)); }
  void shut_down_writing(std::error_code& error) override { lower_->shut_down_writing(error); }
  void close() override { lower_->close(); }
  std::string describe() const override { return lower_->describe(); }

  std::size_t reads = 0, writes = 0;

 private:
  std::unique_ptr<rpc::ByteStream> lower_;
};

TEST_F(TlsStreamTest, ManyRecordsCostFewCallsOfTheLowerStream) {
  const auto loop = std::make_shared<ManualLoop>();
  auto ends = PairedStream::make(loop, {.capacity = 4 << 20});
  auto first = std::make_unique<Counting>(std::move(ends.first)),
       second = std::make_unique<Counting>(std::move(ends.second));
  Counting &client_end = *first, &server_end = *second;
  const auto client =
                 rpc::make_tls_stream(std::move(first), client_, rpc::ExpectedPeer{.host = "server"}, loop),
             server = rpc::make_tls_stream(std::move(second), server_, std::nullopt, loop);
  client->when_readable([] {});
  server->when_readable([] {});
  loop->run();

  const std::string bytes = some_bytes(1 << 20);
  std::string received(bytes.size(), '\0');
  for (int round = 0; round < 3; ++round) {  // buffers grow in the first round
    client_end.writes = server_end.reads = 0;
    std::error_code error;
    EXPECT_EQ(write_once(*client, bytes, error), bytes.size());  // the pair accepts all bytes
    const std::array into{std::as_writable_bytes(std::span(received))};
    EXPECT_EQ(server->read(into, error), bytes.size());
    EXPECT_TRUE(received == bytes);
  }
  EXPECT_LE(client_end.writes, 17u);  // 64 records
  EXPECT_LE(server_end.reads, 10u);

  // A message of several pieces is one record and one call on each side.
  client_end.writes = server_end.reads = 0;
  const std::string prefix = "prefix", header(200, 'h'), body(1000, 'b');
  const std::array message{std::as_bytes(std::span(prefix)), std::as_bytes(std::span(header)),
                           std::as_bytes(std::span(body))};
  std::error_code error;
  EXPECT_EQ(client->write(message, error), 1206u);
  EXPECT_EQ(read_once(*server, error), prefix + header + body);
  EXPECT_EQ(client_end.writes, 1u);
  EXPECT_EQ(server_end.reads, 1u);
}

TEST_F(TlsStreamTest, KeysAreChangedBeforeTheyWearOut) {
  const auto loop = std::make_shared<ManualLoop>();
  auto ends = PairedStream::make(loop, {.capacity = 4 << 20});
  const auto issued = authority_.issue(TestAuthority::agent("raw"));
  RawTls raw(std::move(ends.second), {.server = true, .certificate = issued.certificate, .key = issued.key});
  const std::string bytes = some_bytes(40 * (16 << 10));
  Talker ours(rpc::make_tls_stream(std::move(ends.first), client_, rpc::ExpectedPeer{.agent = "raw"}, loop,
                                   rpc::TlsSettings{.records_per_key = 10}),
              bytes);
  ours.start();
  raw.start();
  loop->run();
  EXPECT_TRUE(raw.received() == bytes) << raw.error();
  EXPECT_EQ(ours.received(), RawTls::message);
  EXPECT_GE(raw.key_updates(), 4);  // records are not all full

  Bare pair(client_, server_, {.capacity = 4 << 20}, {.records_per_key = 2});
  Talker client(std::move(pair.client), bytes, true), server(std::move(pair.server), bytes, true);
  client.start();
  server.start();
  pair.loop->run();
  EXPECT_TRUE(client.received() == bytes && client.ended()) << client.explained();
  EXPECT_TRUE(server.received() == bytes && server.ended()) << server.explained();
}

// --- Waiting ---

TEST_F(TlsStreamTest, ASideThatOnlyWaitsDrivesTheHandshake) {
  for (const bool for_reading : {true, false}) {
    Bare pair(client_, server_);
    int woken = 0;
    for (rpc::ByteStream* stream : {pair.client.get(), pair.server.get()}) {
      if (for_reading)
        stream->when_readable([&] { ++woken; });
      else
        stream->when_writable([&] { ++woken; });
    }
    EXPECT_EQ(woken, 0);  // callbacks do not run within the call
    pair.loop->run();
    EXPECT_EQ(woken, 2);
    EXPECT_EQ(pair.client->identity(), "cert:server");
    EXPECT_EQ(pair.server->identity(), "cert:worker1");
  }
}

TEST_F(TlsStreamTest, AReaderAndAWriterWaitAtOnce) {
  Bare pair(client_, server_, {.capacity = 100});
  bool readable = false, writable = false;
  pair.client->when_readable([&] { readable = true; });
  pair.client->when_writable([&] { writable = true; });
  pair.server->when_readable([] {});
  pair.loop->run();
  EXPECT_TRUE(writable);

  // Bytes that arrive together with the end of the handshake wake the reader.
  std::error_code error;
  EXPECT_EQ(write_once(*pair.server, "early", error), 5u);
  pair.loop->run();
  read_once(*pair.client, error);
  readable = false;
  pair.client->when_readable([&] { readable = true; });
  pair.loop->run();
  EXPECT_FALSE(readable);
  write_once(*pair.server, "late", error);
  pair.loop->run();
  EXPECT_TRUE(readable);
}

// The lower stream does not report bytes that OpenSSL has decrypted and the owner has not read.
TEST_F(TlsStreamTest, BytesLeftInARecordAreReadable) {
  Bare pair(client_, server_);
  pair.shake_hands();
  std::error_code error;
  write_once(*pair.client, "0123456789", error);
  std::string got;
  std::function<void()> read_one = [&] {
    std::array<std::byte, 1> byte;
    const std::array into{std::span<std::byte>(byte)};
    if (pair.server->read(into, error) == 1) got += static_cast<char>(byte[0]);
    if (got.size() < 10) pair.server->when_readable(read_one);
  };
  pair.server->when_readable(read_one);
  pair.loop->run();
  EXPECT_EQ(got, "0123456789");
}

// --- Truncated and aborted streams ---

TEST_F(TlsStreamTest, ATruncatedStreamIsAnError) {
  for (const bool at_client : {true, false}) {
    TlsPair pair(client_, server_);
    pair.run();
    std::error_code error;
    (at_client ? pair.server_end : pair.client_end)->shut_down_writing(error);
    pair.loop->run();
    Talker& talker = at_client ? *pair.client : *pair.server;
    EXPECT_EQ(talker.read_error(), TlsError::truncated) << talker.explained();
    EXPECT_EQ(talker.explained(), "the stream was cut off: it ended without the peer's TLS close");
    EXPECT_FALSE(talker.ended());
    EXPECT_TRUE(pair.met());  // the bytes that had arrived were delivered
    EXPECT_EQ(write_error(talker.stream(), "x"), TlsError::truncated);
    talker.stream().shut_down_writing(error);
    EXPECT_EQ(error, TlsError::truncated);
  }
}

TEST_F(TlsStreamTest, BytesBeforeAnEndAreDeliveredBeforeIt) {
  Bare pair(client_, server_);
  pair.shake_hands();
  std::error_code error;
  write_once(*pair.client, "the last words", error);
  pair.client->close();
  EXPECT_EQ(read_once(*pair.server, error), "the last words");
  read_once(*pair.server, error);
  EXPECT_EQ(error, TlsError::truncated);
}

TEST_F(TlsStreamTest, AnEndWithinTheHandshake) {
  for (const bool at_client : {true, false}) {
    Bare pair(client_, server_);
    Talker talker(std::move(at_client ? pair.client : pair.server), "never");
    talker.start();
    (at_client ? pair.server : pair.client)->close();
    pair.loop->run();
    EXPECT_EQ(talker.read_error(), TlsError::handshake_ended) << talker.explained();
    EXPECT_EQ(talker.received(), "");
  }
}

TEST_F(TlsStreamTest, AnErrorOfTheLowerStreamIsAnErrorOfThisOne) {
  for (const bool in_handshake : {true, false}) {
    TlsPair pair(client_, server_);
    if (in_handshake) {
      pair.client->start();
      pair.server->start();
    } else {
      pair.run();
    }
    pair.client_end->break_down(asio::error::connection_reset);
    pair.loop->run();
    EXPECT_EQ(pair.client->read_error(), asio::error::connection_reset);
    EXPECT_EQ(pair.server->read_error(), asio::error::connection_reset);
    EXPECT_EQ(pair.client->explained(), std::error_code(asio::error::connection_reset).message());
    EXPECT_EQ(write_error(pair.client->stream(), "x"), asio::error::connection_reset);
  }
}

TEST_F(TlsStreamTest, AWaitingWriterIsNotifiedOfTheEnd) {
  Bare pair(client_, server_, {.capacity = 500});
  pair.shake_hands();
  std::error_code error;
  const std::string bytes(1 << 20, 'x');
  while (write_once(*pair.client, bytes, error) > 0) {
  }
  EXPECT_EQ(error, asio::error::would_block);
  bool woken = false;
  pair.client->when_writable([&] { woken = true; });
  pair.loop->run();
  EXPECT_FALSE(woken);
  pair.server.reset();
  pair.loop->run();
  EXPECT_TRUE(woken);
  EXPECT_TRUE(write_error(*pair.client, "x"));
  EXPECT_NE(write_error(*pair.client, "x"), asio::error::would_block);
}

// The server has closed when the client writes. The reason is in the bytes that the server sent before.
TEST_F(TlsStreamTest, AFailedWriteReportsWhyThePeerClosed) {
  const TestAuthority stranger("stranger");
  auto options = stranger.credentials("worker1");
  options.trust_pem = authority_.certificate();
  const Credentials theirs(options);
  Bare pair(theirs, server_);
  std::error_code error;
  EXPECT_EQ(write_error(*pair.client, "x"), asio::error::would_block);  // starts the handshake
  read_once(*pair.server, error);
  EXPECT_EQ(error, asio::error::would_block);
  EXPECT_EQ(write_once(*pair.client, "is done, as far as it knows", error), 27u);
  EXPECT_EQ(read_once(*pair.server, error), "");
  EXPECT_EQ(error, TlsError::certificate_untrusted);
  pair.server.reset();
  write_once(*pair.client, "goes, for all that it can tell", error);
  error = write_error(*pair.client, "x");
  EXPECT_EQ(error, TlsError::own_certificate_untrusted) << error.message();
}

// --- Peers that do not use TLS ---

TEST_F(TlsStreamTest, PlaintextInsteadOfTLS) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {std::string("WEFT\x01\x01\0\0", 8) + std::string(24, '\0'),
       "the peer does not speak TLS: it speaks weft without credentials"},
      {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "the peer does not speak TLS"},
      {"SSH-2.0-OpenSSH_9.2p1\r\n", "the peer does not speak TLS"},
      {std::string(100, '\0'), "the peer does not speak TLS"},
      {std::string(5, '\xff'), "the peer does not speak TLS"}};
  for (const auto& [bytes, words] : cases) {
    for (const bool at_client : {true, false}) {
      for (const std::size_t most : {std::size_t{1}, SIZE_MAX}) {
        const auto loop = std::make_shared<ManualLoop>();
        auto ends = PairedStream::make(loop, {.max_a_call = most});
        Talker ours(at_client ? rpc::make_tls_stream(std::move(ends.first), client_,
                                                     rpc::ExpectedPeer{.host = "server"}, loop)
                              : rpc::make_tls_stream(std::move(ends.first), server_, std::nullopt, loop),
                    "never");
        Talker plain(std::move(ends.second), bytes);
        ours.start();
        plain.start();
        loop->run();
        EXPECT_EQ(ours.received(), "");
        EXPECT_EQ(ours.read_error(), TlsError::no_tls) << ours.explained();
        EXPECT_EQ(ours.explained(), words);
        EXPECT_TRUE(plain.ended());  // the lower stream has ended in this direction
        EXPECT_EQ(plain.received().find("never"), std::string::npos);
      }
    }
  }
}

// --- Ends of the stream itself ---

TEST_F(TlsStreamTest, NothingRunsAfterClose) {
  for (const bool after_handshake : {true, false}) {
    Bare pair(client_, server_);
    if (after_handshake) pair.shake_hands();
    bool ran = false;
    pair.client->when_readable([&] { ran = true; });
    pair.client->when_writable([&] { ran = true; });  // would be due at once after the handshake
    pair.client->close();
    pair.client->close();
    std::error_code error;
    if (after_handshake) write_once(*pair.server, "x", error);
    pair.server->when_readable([] {});
    pair.loop->run();
    EXPECT_FALSE(ran);
    EXPECT_TRUE(write_error(*pair.client, "x"));
    read_once(*pair.client, error);
    EXPECT_TRUE(error);
  }
}

TEST_F(TlsStreamTest, ACallbackMayDestroyItsStream) {
  Bare pair(client_, server_);
  bool second = false;
  pair.client->when_readable([&] { pair.client.reset(); });
  pair.client->when_writable([&] { second = true; });
  pair.server->when_readable([] {});
  pair.loop->run();
  EXPECT_EQ(pair.client, nullptr);
  EXPECT_FALSE(second);
}

TEST_F(TlsStreamTest, AnEndAtEveryStage) {
  std::size_t stages = 0;
  for (bool over = false; !over; ++stages) {
    for (const bool client_ends : {true, false}) {
      TlsPair pair(client_, server_, {.host = "server"},
                   {.capacity = 700, .max_a_call = 100, .would_block_one_in = 3, .seed = stages / 2});
      pair.client->send(some_bytes(3000));
      pair.server->send(some_bytes(3000));
      pair.client->start();
      pair.server->start();
      std::size_t jobs = 0;
      while (jobs < stages && pair.loop->step()) ++jobs;
      over = jobs < stages;
      if (over) break;
      (client_ends ? pair.client : pair.server)->drop();
      pair.loop->run();
      const Talker& left = client_ends ? *pair.server : *pair.client;
      ASSERT_TRUE(left.read_error()) << "stage " << stages;
      ASSERT_NE(left.read_error(), asio::error::eof) << "stage " << stages;
    }
  }
  EXPECT_GT(stages, 30u);
}

// --- Threads ---

// The two ends run on two threads. A third thread reloads the credentials of both sides.
TEST_F(TlsStreamTest, ConnectionsOnTwoThreadsWhileCredentialsReload) {
  Credentials client(authority_.credentials("worker1")), server(authority_.credentials("server"));
  const auto first = std::make_shared<rpc::AsioLoop>(), second = std::make_shared<rpc::AsioLoop>();
  std::jthread reloader([&] {
    for (int i = 0; i < 100; ++i) {
      client.reload();
      server.replace(authority_.credentials("server"));
      EXPECT_NE(server.describe(), "");
    }
  });
  const std::string up = some_bytes(200'000, 1), down = some_bytes(200'000, 2);
  // Each side uses only its own loop.
  struct Side {
    std::shared_ptr<rpc::Loop> loop;
    std::string expected;
    std::unique_ptr<Talker> talker;
    Event done;
  };
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    auto ends = PairedStream::make(
        first, second, {.capacity = 20'000, .max_a_call = 30'000, .would_block_one_in = 20, .seed = seed});
    Side sides[2];
    sides[0].loop = first;
    sides[0].expected = down;
    sides[0].talker = std::make_unique<Talker>(
        rpc::make_tls_stream(std::move(ends.first), client, rpc::ExpectedPeer{.agent = "server"}, first), up,
        true, seed);
    sides[1].loop = second;
    sides[1].expected = up;
    sides[1].talker = std::make_unique<Talker>(
        rpc::make_tls_stream(std::move(ends.second), server, std::nullopt, second), down, true, seed);
    for (Side& side : sides) {
      side.talker->when_done = [&side] { side.done.set(); };
      side.loop->post([&side] { side.talker->start(); });
    }
    for (Side& side : sides) side.done.wait();
    for (Side& side : sides) {
      Handover<std::string> wrong;
      side.loop->post([&side, &wrong] {
        const Talker& talker = *side.talker;
        wrong.give(talker.received() == side.expected && talker.ended() ? ""
                                                                        : "broken: " + talker.explained());
      });
      EXPECT_EQ(wrong.take(), "");
    }
    for (Side& side : sides) {
      Event gone;
      side.loop->post([&side, &gone] {
        side.talker.reset();
        gone.set();
      });
      gone.wait();
    }
  }
  first->stop();
  second->stop();
}

}  // namespace
}  // namespace weft::test::tls_stream_test
