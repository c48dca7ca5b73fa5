// Thousands of invalid frames, mutated from valid ones (FrameMutator), sent to an agent that serves and to an
// agent that calls. The process survives, the agent closes every connection that it refuses, every call
// completes, and nothing leaks.
//
// Each frame has a number, which a failure and a crash print. WEFT_SEED=number runs that frame alone.
#include "tests/support/cluster.h"
#include "tests/support/decoders.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::mutated_frames_test {
namespace {

using namespace probe;
using test::got;

constexpr std::uint64_t server_frames = 1200, client_frames = 1600;  // 10,000 over TCP
constexpr std::size_t batch = 16;                                    // connections at a time

// --- A serving agent ---

class ServingTest : public testing::TestWithParam<FrameKind> {
 protected:
  ServingTest() { server->serve(std::make_shared<Probe>()); }

  // Where the mutated bytes are sent in the conversation.
  enum class Place { first, after_own_hello, after_both_hellos, within_a_frame, within_an_attachment };
  struct Attack {
    Place place;
    Bytes before, bytes;
  };

  static Attack attack(std::uint64_t seed) {
    FrameMutator random(seed, small_limits());
    Attack made{static_cast<Place>(random.below(5)), {}, {}};
    if (GetParam() == FrameKind::hello && random.one_in(2)) made.place = Place::first;
    const auto add = [&](const Bytes& frame, std::size_t size) {
      made.before.insert(made.before.end(), frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
    };
    if (made.place != Place::first) {
      const Bytes& greeting = samples(FrameKind::hello).front();
      add(greeting, greeting.size());
      if (random.one_in(4)) {  // with a call in flight
        const Bytes waiting = sealed(request(), "probe.wait", 5);
        add(waiting, waiting.size());
      }
    }
    if (made.place == Place::within_a_frame) {
      const Bytes& frame = any_sample(random);
      add(frame, random.below(frame.size()));
    } else if (made.place == Place::within_an_attachment) {
      const std::size_t size = 2000 + random.below(200'000);
      const Bytes frame = sealed(request(foreign(), filled(size)), "probe.digest", 4);
      add(frame, frame.size() - 1 - random.below(size));
    }
    made.bytes = stream_of(random, GetParam());
    if (random.one_in(2)) {
      const Bytes ping = plain(FrameKind::ping, seed);
      made.bytes.insert(made.bytes.end(), ping.begin(), ping.end());
    }
    return made;
  }

  // Sends all of these at the same time, each over its own connection, and waits until the agent has closed
  // the connections.
  void run(std::uint64_t first, std::uint64_t last) {
    Running::now(first, last - 1);
    std::vector<Attack> attacks;
    std::vector<Socket> sockets;
    for (std::uint64_t seed = first; seed != last; ++seed) {
      attacks.push_back(attack(seed));
      sockets.push_back(Socket::connected(server.address()));
    }
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      const Attack& now = attacks[i];
      sockets[i].send(now.before);
      if (now.place == Place::after_both_hellos && sockets[i].next()) ++greeted_;
      sockets[i].send(now.bytes);
      sockets[i].end_sending();
    }
    for (auto& socket : sockets) answers_ += socket.frames_to_end();
    connections_ += sockets.size();
    server.wait_for_ended(connections_);
  }

  Running running;
  Watched server{"node"};
  std::size_t connections_ = 0, greeted_ = 0, answers_ = 0;
};

std::string name_of(FrameKind kind) {
  static const std::map<FrameKind, std::string> names{
      {FrameKind::hello, "Hello"},       {FrameKind::request, "Request"}, {FrameKind::reply, "Reply"},
      {FrameKind::cancel, "Cancel"},     {FrameKind::goodbye, "Goodbye"}, {FrameKind::ping, "Ping"},
      {FrameKind::pong, "Pong"},         {FrameKind::credit, "Credit"},   {FrameKind::lane, "Lane"},
      {FrameKind::received, "Received"}, {FrameKind::resume, "Resume"}};
  return names.at(kind);
}
INSTANTIATE_TEST_SUITE_P(MutatedFrames, ServingTest, testing::ValuesIn(all_kinds),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ServingTest, AnAgentServesAfterMutatedFrames) {
  auto good = std::make_unique<Watched>("good");
  const Peer peer = (*good)->connect(server.address());
  const Everything sent = everything();
  const auto expect_answers = [&] {
    const Everything back = got(peer.call<&Probe::take>(sent, filled(3000)));
    EXPECT_EQ(back.shelves.size(), sent.shelves.size());
    EXPECT_EQ(got(peer.call<&Probe::echo>("still there")), "still there");
  };
  const auto [first, last] = numbers(server_frames);
  std::size_t files = 0, bytes = 0;
  for (std::uint64_t seed = first; seed < last; seed += batch) {
    SCOPED_TRACE("replay with WEFT_SEED from " + std::to_string(seed) + " to " +
                 std::to_string(seed + batch - 1));
    ASSERT_NO_THROW(run(seed, std::min(seed + batch, last)));
    ASSERT_NO_THROW(expect_answers());
    if (files == 0) {  // objects that are created once exist now
      files = open_files();
      bytes = allocated_bytes();
    }
  }
  test::eventually("no more files are open than after the first batch",
                   [&] { return open_files() <= files; });
  const std::size_t after = allocated_bytes();
  EXPECT_LT(after, bytes + (1U << 20)) << "bytes stay behind";
  std::printf("%zu connections, %zu frames answered, %+.1f KiB\n", connections_, answers_,
              (static_cast<double>(after) - static_cast<double>(bytes)) / 1024);
  // Each connection gets at least the agent's Hello, unless a reset discarded it.
  if (last - first == server_frames) {
    EXPECT_GT(answers_, connections_ / 2);
  }
  good.reset();
  server.wait_for_ended(connections_ + 1);
  EXPECT_NO_THROW(got(server->drain(test::too_long))) << "calls stay behind";
}

// --- A calling agent ---

TEST(MutatedFrames, EveryCallCompletesIfItsReplyIsMutated) {
  Running running;
  Watched client("client");
  Socket listener = Socket::listening();
  const Peer peer = client->connect(listener.address());
  const auto [first, last] = numbers(client_frames);
  std::map<ErrorKind, std::size_t> errors;
  std::size_t values = 0, rounds = 0, files = 0, bytes = 0;
  for (std::uint64_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE("replay with WEFT_SEED=" + std::to_string(seed));
    Running::now(seed, seed);
    FrameMutator random(seed, small_limits());

    auto text = peer.call<&Probe::echo>("text");
    auto all = peer.call<&Probe::take>(everything(), filled(2000));
    auto blobs = peer.call<&Probe::blobs>(std::vector<Buffer>{filled(10), filled(2000)});
    auto digest = peer.call<&Probe::digest>(foreign(), filled(5));
    auto nothing = peer.call<&Probe::wait>();

    std::size_t broken = 0;  // the number of the broken reply
    {
      Socket socket = listener.accept();
      if (random.one_in(5)) {  // within the handshake
        socket.send(stream_of(random, random.one_in(2) ? FrameKind::hello : random.pick(all_kinds)));
      } else {
        socket.send(hello("server"));
        ASSERT_TRUE(socket.next()) << "its Hello";
        std::vector<Bytes> replies;
        broken = random.below(5);
        for (std::size_t i = 0; i < 5; ++i) {
          const auto frame = socket.next();
          ASSERT_TRUE(frame) << "its requests";
          const std::uint64_t id = frame->prefix.call_id;
          Bytes answer = i == 0   ? reply(std::string("text"), id)
                         : i == 1 ? reply(everything(), id)
                         : i == 2 ? reply(std::vector<Buffer>{filled(10), filled(2000)}, id)
                         : i == 3 ? reply(std::uint64_t{1}, id)
                                  : reply(Unit{}, id);
          if (i == broken) {
            if (random.one_in(6))
              answer =
                  test::bytes_of(OutgoingMessage::failure(id, {ErrorKind::cancelled, "no", "w", "m", "t"}));
            if (random.one_in(6)) answer = any_sample(random);
            answer = random.mutate(answer, any_sample(random));
            if (random.one_in(8)) answer = {};  // no reply to this call; the other replies are sent
          }
          replies.push_back(std::move(answer));
        }
        for (const Bytes& answer : replies) socket.send(answer);
      }
      socket.end_sending();
      ASSERT_NO_THROW(socket.frames_to_end());
    }
    // Replies before the broken one are complete. The broken one may still decode to a value of the right
    // type.
    const auto ends = [&](std::size_t i, auto future) {
      std::optional<Error> error;
      try {
        (void)got(std::move(future));
        ++values;
      } catch (const Error& failed) {
        error = failed;
        ++errors[failed.kind()];
      }
      if (i < broken && error) ADD_FAILURE() << "reply " << i << " was whole: " << error->what();
    };
    ASSERT_NO_THROW(ends(0, std::move(text)));
    ASSERT_NO_THROW(ends(1, std::move(all)));
    ASSERT_NO_THROW(ends(2, std::move(blobs)));
    ASSERT_NO_THROW(ends(3, std::move(digest)));
    ASSERT_NO_THROW(ends(4, std::move(nothing)));
    ASSERT_NO_THROW(client.wait_for_ended(++rounds));
    if (files == 0) {
      files = open_files();
      bytes = allocated_bytes();
    }
  }
  EXPECT_NO_THROW(got(client->drain(test::too_long))) << "calls stay behind";
  test::eventually("no more files are open than after the first call", [&] { return open_files() <= files; });
  const std::size_t after = allocated_bytes();
  EXPECT_LT(after, bytes + (1U << 20)) << "bytes stay behind";
  std::printf("%zu connections, %zu calls with a value, %+.1f KiB\n", rounds, values,
              (static_cast<double>(after) - static_cast<double>(bytes)) / 1024);
  for (const auto& [kind, n] : errors) std::printf("  %zu %s\n", n, std::string(to_string(kind)).c_str());
  if (last - first == client_frames) {
    EXPECT_GT(values, rounds);
    EXPECT_GT(errors[ErrorKind::peer_lost], rounds);
    EXPECT_GT(errors[ErrorKind::type_mismatch], 0U);
    EXPECT_GT(errors[ErrorKind::protocol_error], 0U);
  }
}

// --- The decoders alone, which read every byte, or refuse the frame ---

constexpr std::uint64_t decoder_frames = 12'000;

TEST(MutatedDecoders, ReadOrRefuseMutatedFrames) {
  Running running;
  Decoders decoders([](const std::string& what) { ADD_FAILURE() << what; });
  const auto [first, last] = numbers(decoder_frames);
  for (std::uint64_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE("replay with WEFT_SEED=" + std::to_string(seed));
    Running::now(seed, seed);
    FrameMutator random(seed, small_limits());
    // Frames with values are more frequent than the others.
    const FrameKind values = random.one_in(2) ? FrameKind::request : FrameKind::reply;
    const std::size_t piece = random.one_in(4) ? 1 + random.below(100) : SIZE_MAX;
    decoders.stream(stream_of(random, random.one_in(3) ? random.pick(all_kinds) : values), piece);
    if (HasFailure()) return;  // the first is enough
  }
  std::printf("%zu frames got through, %zu streams were refused; %zu values rendered, %zu decoded\n",
              decoders.frames, decoders.refused, decoders.rendered, decoders.decoded);
  if (last - first == decoder_frames) {
    EXPECT_GT(decoders.frames, decoder_frames / 4);
    EXPECT_GT(decoders.refused, decoder_frames / 4);
    EXPECT_GT(decoders.decoded, decoder_frames / 4);
  }
}

}  // namespace
}  // namespace weft::rpc::mutated_frames_test
