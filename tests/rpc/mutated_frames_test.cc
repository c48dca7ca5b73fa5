// Frames that no well-behaved peer sends, made by the thousand from ones that it does (FrameMutator): against
// an agent that serves, an agent that calls, and the decoders alone. Nothing ends the process, every
// connection that is refused is closed, every call ends, nothing stays behind.
//
// Each frame goes by its number, which a failure and a crash print; WEFT_SEED=number runs that one alone.
#include <weft/rpc/codec/capnp_codec.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/transport/frame_reader.h>
#include <weft/rpc/wire/checksum.h>
#include <weft/rpc/wire/message.capnp.h>
#include <weft/rpc/wire/render.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/support/cluster.h"
#include "tests/support/frame_mutator.h"
#include "tests/support/messages.h"

// Where the process runs under a sanitizer.
extern "C" {
__attribute__((weak)) void __sanitizer_set_death_callback(void (*)());
__attribute__((weak)) std::size_t __sanitizer_get_current_allocated_bytes();
__attribute__((weak)) void __sanitizer_purge_allocator();
}

namespace weft::rpc {
namespace {

using test::Bytes;
using test::FrameMutator;
using test::got;

// --- Numbers ---

constexpr std::uint64_t server_frames = 1200, client_frames = 1600,
                        decoder_frames = 12'000;  // 10,000 over TCP
constexpr std::size_t batch = 16;                 // connections at a time

// Those of a test that runs `n`: all, or the one that the environment names.
std::pair<std::uint64_t, std::uint64_t> numbers(std::uint64_t n) {
  const char* one = std::getenv("WEFT_SEED");
  if (one == nullptr) return {0, n};
  const std::uint64_t seed = std::strtoull(one, nullptr, 10);
  return {seed, seed + 1};
}

std::atomic<std::uint64_t> running_first{0}, running_last{0};

// Says what was running when the process ends of it.
void print_running() {
  char line[96];
  const int n = std::snprintf(line, sizeof line, "mutated frames: died with WEFT_SEED from %llu to %llu\n",
                              static_cast<unsigned long long>(running_first.load()),
                              static_cast<unsigned long long>(running_last.load()));
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(n));
}
void on_signal(int number) {
  print_running();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

class Running {
 public:
  Running() {
    running_first = running_last = 0;
    before_ = std::signal(SIGABRT, on_signal);
    if (__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(print_running);
    } else {
      segv_before_ = std::signal(SIGSEGV, on_signal);
    }
  }
  ~Running() {
    std::signal(SIGABRT, before_);
    if (__sanitizer_set_death_callback != nullptr) {
      __sanitizer_set_death_callback(nullptr);
    } else {
      std::signal(SIGSEGV, segv_before_);
    }
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  static void now(std::uint64_t first, std::uint64_t last) {
    running_first = first;
    running_last = last;
  }

 private:
  void (*before_)(int) = SIG_DFL;
  void (*segv_before_)(int) = SIG_DFL;
};

// --- What is served ---

enum class Colour : std::uint8_t { red, green };
struct Small {
  std::string name;
  std::optional<double> weight;
};
WEFT_CODEC(Small, name, weight)
struct Everything {
  bool flag = false;
  std::int8_t tiny = 0;
  std::uint64_t count = 0;
  float ratio = 0;
  Colour colour = Colour::red;
  std::string text;
  std::vector<std::byte> bytes;
  std::vector<double> reals;
  std::vector<float> floats;
  std::vector<std::int32_t> ints;
  std::vector<std::uint32_t> uints;
  std::array<std::int16_t, 3> three{};
  std::map<std::string, std::vector<Small>> shelves;
  std::unordered_map<std::int64_t, bool> marks;
  std::optional<std::optional<std::int32_t>> twice;
  std::tuple<std::int64_t, std::string, Unit> triple;
  std::variant<std::string, Small, std::vector<std::string>> choice;
};
WEFT_CODEC(Everything, flag, tiny, count, ratio, colour, text, bytes, reals, floats, ints, uints, three,
           shelves, marks, twice, triple, choice)
struct ValueTree {  // as deep as whoever sends it likes
  std::int64_t number = 0;
  std::vector<ValueTree> below;
};
WEFT_CODEC(ValueTree, number, below)
using Foreign = CapnpMessage<schema::Hello>;  // any Cap'n Proto struct

Everything everything() {
  Everything all{true,     -7,     1ULL << 63, 0.5F,      Colour::green, "text", Bytes(40, std::byte{1}),
                 {1, 2.5}, {1, 2}, {-1, 1},    {1, 2, 3}, {-1, 0, 1}};
  all.shelves["upper"] = {{"cup", 0.2}, {"plate", std::nullopt}};
  all.shelves["lower"] = {};
  all.marks = {{1, true}, {-5, false}};
  all.twice = std::optional<std::int32_t>(3);
  all.triple = {1, "two", {}};
  all.choice = std::vector<std::string>{"a", "b"};
  return all;
}
Foreign foreign() {
  Foreign message;
  message.builder().setName("inner");
  message.builder().initAddresses(2).set(1, "somewhere");
  return message;
}
Buffer filled(std::size_t size) {
  Buffer buffer = Buffer::allocate(size);
  std::fill_n(buffer.data(), size, std::byte{0x33});
  return buffer;
}

struct Probe {
  std::string echo(std::string text) { return text; }
  Everything take(Everything all, Buffer) { return all; }
  std::vector<Buffer> blobs(std::vector<Buffer> blobs) { return blobs; }
  std::uint64_t digest(Foreign message, Buffer bytes) {
    return crc32c(bytes.bytes()) + message.reader().getName().size();
  }
  // Until the caller or its connection goes.
  Future<void> wait(CallContext& call) {
    auto promise = std::make_shared<Promise<void>>();
    auto future = promise->future();
    call.on_cancel([promise] { promise->complete({}); });
    return future;
  }
  using Service = rpc::Service<"probe", Method<"echo", &Probe::echo>, Method<"take", &Probe::take>,
                               Method<"blobs", &Probe::blobs>, Method<"digest", &Probe::digest>,
                               Method<"wait", &Probe::wait>>;
};

// --- The frames that are recorded ---

Limits small_limits() {
  Limits limits;
  limits.message = 4U << 20;
  limits.header = 1U << 20;
  limits.attachments = 64;
  limits.in_flight = 8U << 20;
  return limits;
}

template <class... Arguments>
std::unique_ptr<OutgoingMessage> request(const Arguments&... arguments) {
  auto message = OutgoingMessage::request(sizeof...(arguments));
  std::size_t i = 0;
  (Codec<Arguments>::encode(message->argument(i++), arguments), ...);
  return message;
}
Bytes sealed(std::unique_ptr<OutgoingMessage> message, std::string_view method, std::uint64_t id,
             std::uint16_t flags = 0, std::uint64_t timeout_ns = 0) {
  return test::bytes_of(message->seal_request({name_hash(method), 1, timeout_ns}, id, flags));
}
template <class T>
Bytes reply(const T& value, std::uint64_t id) {
  auto message = OutgoingMessage::reply();
  Codec<T>::encode(message->result(), value);
  return test::bytes_of(message->seal_reply(id));
}
Bytes plain(FrameKind kind, std::uint64_t id) { return test::bytes_of(OutgoingMessage::plain(kind, id)); }
Bytes hello(const std::string& name) {
  return test::bytes_of(
      OutgoingMessage::hello({1, 1, 0, name, 77, {"tcp://127.0.0.1:1", "unix:///nowhere"}}));
}

// Valid frames of a kind, in every shape that it has.
std::vector<Bytes> recorded(FrameKind kind) {
  std::vector<Bytes> frames;
  switch (kind) {
    case FrameKind::hello:
      frames = {hello("someone"),
                hello("node"),
                hello(std::string(250, 'n')),
                test::bytes_of(OutgoingMessage::hello({1, 9, ~0ULL, "newer", 1, {}})),
                test::bytes_of(OutgoingMessage::hello({2, 9, 0, "too new", 1, {}})),
                test::bytes_of(OutgoingMessage::hello({1, 1, 0, "a", 1, std::vector<std::string>(30, "x")}))};
      break;
    case FrameKind::request: {
      frames = {sealed(request(std::string("hello")), "probe.echo", 1),
                sealed(request(std::string(40'000, 'x')), "probe.echo", 2),
                sealed(request(std::string("quietly")), "probe.echo", 3, frame_flags::notify),
                sealed(request(everything(), filled(5000)), "probe.take", 1, 0, 1U << 30),
                sealed(request(everything(), filled(3)), "probe.take", 2),
                sealed(request(std::vector<Buffer>{filled(1), filled(2000), filled(70'000), filled(1025)}),
                       "probe.blobs", 3),
                sealed(request(foreign(), filled(4096)), "probe.digest", 4),
                sealed(request(), "probe.wait", 5),
                sealed(request(), "weft.ping", 6),
                sealed(request(), "weft.methods", 7),
                sealed(request(std::string("x"), 1, everything()), "nowhere.nothing", 8)};
      for (const bool required : {false, true}) {
        auto message = request(std::string("with sections"));
        for (const std::string_view key : {"rref", "pass", ""})
          Codec<Everything>::encode(message->section(key, required && key == "pass"), everything());
        message->attach(filled(0));
        message->attach(filled(65));
        frames.push_back(sealed(std::move(message), "probe.echo", 9));
      }
      auto many = request(std::vector(60, everything()));  // several segments
      frames.push_back(sealed(std::move(many), "probe.take", 10));
      auto deep = OutgoingMessage::request(1);
      ValueWriter value = deep->argument(0);
      for (int i = 0; i < 25; ++i) value = i % 2 == 0 ? value.set_list(1)[0] : value.set_variant(1);
      value.set_bool(true);
      frames.push_back(sealed(std::move(deep), "probe.echo", 11));
      break;
    }
    case FrameKind::reply: {
      frames = {reply(std::string("answer"), 1), reply(everything(), 2), reply(filled(5000), 3),
                reply(Unit{}, 4),
                test::bytes_of(OutgoingMessage::failure(
                    5, {ErrorKind::not_found, "no such thing", "node", "probe.echo", "std::logic_error"}))};
      auto message = OutgoingMessage::reply();
      Codec<Foreign>::encode(message->result(), foreign());
      Codec<Everything>::encode(message->section("rref", true), everything());
      message->attach(filled(100));
      frames.push_back(test::bytes_of(message->seal_reply(6)));
      break;
    }
    case FrameKind::goodbye:
      frames = {test::bytes_of(OutgoingMessage::goodbye(std::nullopt)),
                test::bytes_of(OutgoingMessage::goodbye(Error(ErrorKind::unsupported, "too old"))),
                test::bytes_of(OutgoingMessage::goodbye(Error(ErrorKind{999}, "")))};
      break;
    default:
      for (const std::uint64_t id : {0, 1, 5}) frames.push_back(plain(kind, id));
  }
  return frames;
}

const std::vector<FrameKind> all_kinds{FrameKind::hello,  FrameKind::request, FrameKind::reply,
                                       FrameKind::cancel, FrameKind::goodbye, FrameKind::ping,
                                       FrameKind::pong};
const std::vector<Bytes>& samples(FrameKind kind) {
  static const auto all = [] {
    std::map<FrameKind, std::vector<Bytes>> made;
    for (const FrameKind each : all_kinds) made[each] = recorded(each);
    return made;
  }();
  return all.at(kind);
}
const Bytes& any_sample(FrameMutator& random) { return random.pick(samples(random.pick(all_kinds))); }

// A number's bytes for a connection: a mutated frame of the kind, perhaps twice, perhaps with valid ones
// before, after or between (a frame less, more or out of order).
Bytes stream_of(FrameMutator& random, FrameKind kind) {
  const Bytes& whole = random.pick(samples(kind));
  const Bytes mutated = random.mutate(whole, any_sample(random));
  std::vector<Bytes> frames{mutated};
  if (random.one_in(8)) frames.push_back(mutated);
  for (std::size_t n = random.one_in(2) ? 0 : random.below(3); n != 0; --n) {
    const auto place = frames.begin() + static_cast<std::ptrdiff_t>(random.below(frames.size() + 1));
    frames.insert(place, any_sample(random));
  }
  Bytes all;
  for (const Bytes& frame : frames) all.insert(all.end(), frame.begin(), frame.end());
  return all;
}

// --- The wire, by hand ---

[[noreturn]] void fail_call(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {
    if (fd < 0) fail_call("socket");
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }

  static Socket connected(const std::string& address) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to = loopback(static_cast<std::uint16_t>(std::stoi(Address::parse(address).port)));
    if (::connect(socket.fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) fail_call("connect");
    return socket;
  }
  static Socket listening() {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at = loopback(0);
    if (::bind(socket.fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || ::listen(socket.fd_, 16) != 0)
      fail_call("listen");
    return socket;
  }
  std::string address() const {
    sockaddr_in at{};
    socklen_t size = sizeof at;
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    return "tcp://127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  Socket accept() {
    wait();
    return Socket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC));
  }

  // As much as the other side takes; false where it has closed.
  bool send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const auto n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }
  void end_sending() { ::shutdown(fd_, SHUT_WR); }
  // The next frame; none once the other side has closed.
  std::optional<InboundFrame> next() {
    for (;;) {
      if (auto frame = reader_.next()) return frame;
      const auto into = reader_.targets().front();
      wait();
      const auto n = ::recv(fd_, into.data(), into.size(), 0);
      if (n <= 0) return std::nullopt;
      reader_.advance(static_cast<std::size_t>(n));
    }
  }
  // Until the other side has closed. What comes is whole frames, whatever it was sent.
  std::size_t frames_to_end() {
    std::size_t n = 0;
    while (next()) ++n;
    return n;
  }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void wait() {
    pollfd one{fd_, POLLIN, 0};
    if (::poll(&one, 1, 30'000) != 1) throw std::runtime_error("half a minute without a word or an end");
  }

  int fd_;
  FrameReader reader_{Limits{}};
};

// --- What an agent still has ---

std::size_t open_files() {
  std::size_t n = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++n;
  ::closedir(folder);
  return n;
}

std::size_t allocated_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) {
    if (__sanitizer_purge_allocator != nullptr)
      __sanitizer_purge_allocator();  // what ASan keeps of the freed
    return __sanitizer_get_current_allocated_bytes();
  }
  const auto info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

// An agent whose connections are counted as they end.
class Watched {
 public:
  explicit Watched(const std::string& name) {
    AgentOptions options;
    options.name = name;
    options.listen = {"tcp://127.0.0.1:0"};
    options.limits = small_limits();
    options.receive_pool = 0;  // what is kept for later would be taken for what stays behind
    options.handler_threads = 2;
    options.log = [this](const LogRecord& record) {
      if (record.message.find(": closed: ") == std::string_view::npos) return;
      std::lock_guard lock(mutex_);
      ++ended_;
      changed_.notify_all();
    };
    agent_.emplace(std::move(options));
  }
  Agent& operator*() { return *agent_; }
  Agent* operator->() { return &*agent_; }
  std::string address() { return agent_->addresses().front(); }

  void wait_for_ended(std::size_t connections) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, test::too_long, [&] { return ended_ >= connections; }))
      throw std::runtime_error("connections that are over stay open");
    EXPECT_EQ(ended_, connections);
  }
  void forget_ended() {
    std::lock_guard lock(mutex_);
    ended_ = 0;
  }

 private:
  std::mutex mutex_;  // guards ended_
  std::condition_variable changed_;
  std::size_t ended_ = 0;
  std::optional<Agent> agent_;
};

// --- A serving agent ---

class ServingTest : public testing::TestWithParam<FrameKind> {
 protected:
  ServingTest() { server->serve(std::make_shared<Probe>()); }

  // Where on its connection a number's bytes come.
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
      if (random.one_in(4)) {  // calls under way
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

  // All of these at once, each on its connection, until the agent has closed it.
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
      {FrameKind::hello, "Hello"},   {FrameKind::request, "Request"}, {FrameKind::reply, "Reply"},
      {FrameKind::cancel, "Cancel"}, {FrameKind::goodbye, "Goodbye"}, {FrameKind::ping, "Ping"},
      {FrameKind::pong, "Pong"}};
  return names.at(kind);
}
INSTANTIATE_TEST_SUITE_P(MutatedFrames, ServingTest, testing::ValuesIn(all_kinds),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ServingTest, GoesOnServing) {
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
    if (files == 0) {  // what is made once has been
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
  // At least its Hello, where that was not thrown away by a reset.
  if (last - first == server_frames) {
    EXPECT_GT(answers_, connections_ / 2);
  }
  good.reset();
  server.wait_for_ended(connections_ + 1);
  EXPECT_NO_THROW(got(server->drain(test::too_long))) << "calls stay behind";
}

// --- Peers that are well-formed but not well-meaning ---

TEST(HostilePeer, IsForgottenWhenItHasGone) {
  Watched server("node");
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    Socket socket = Socket::connected(server.address());
    const std::vector<std::string> addresses(250, "unix:///" + std::string(250, 'a'));
    socket.send(test::bytes_of(OutgoingMessage::hello({1, 1, 0, "life " + std::to_string(i), i, addresses})));
    socket.send(plain(FrameKind::ping, 1));
    ASSERT_TRUE(socket.next()) << "its Hello";
    ASSERT_TRUE(socket.next()) << "its pong";
    socket.end_sending();
    ASSERT_NO_THROW(socket.frames_to_end());
    server.wait_for_ended(i + 1);
    if (i == 20) bytes = allocated_bytes();
  }
  EXPECT_LT(allocated_bytes(), bytes + (1U << 20));  // what they told would be 24 MB
}

TEST(HostilePeer, MayNotHaveAnAddressForAName) {
  Watched server("node"), other("other");
  Socket socket = Socket::connected(server.address());
  socket.send(hello(other.address()));
  socket.end_sending();
  ASSERT_NO_THROW(socket.frames_to_end());
  EXPECT_EQ(got(server->connect(other.address()).ready()), other->id());
  Socket another = Socket::connected(server.address());
  another.send(hello(std::string(1000, 'n')));  // nor one of any length
  another.send(plain(FrameKind::ping, 1));
  another.end_sending();
  EXPECT_LE(another.frames_to_end(), 1U) << "a pong beside the Hello";
}

TEST(HostilePeer, ThatTakesNoAnswersIsCutOff) {
  Watched server("node");
  Bytes pings;
  for (const Bytes ping = plain(FrameKind::ping, 1); pings.size() < 1'000'000;)
    pings.insert(pings.end(), ping.begin(), ping.end());
  Socket socket = Socket::connected(server.address());
  socket.send(hello("asker"));
  std::size_t sent = 0;
  while (socket.send(pings) && sent < 200'000'000) sent += pings.size();
  ASSERT_LT(sent, 200'000'000U) << "answers of any number are kept for it";
  server.wait_for_ended(1);
}

// --- A calling agent ---

TEST(MutatedFrames, EveryCallEndsWhateverComesInsteadOfItsReply) {
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

    std::size_t broken = 0;  // which reply
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
            if (random.one_in(8)) answer = {};  // none, and the others all the same
          }
          replies.push_back(std::move(answer));
        }
        for (const Bytes& answer : replies) socket.send(answer);
      }
      socket.end_sending();
      ASSERT_NO_THROW(socket.frames_to_end());
    }
    // A reply before the broken one is whole; a broken one may still be a value, of the right type.
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

// --- The decoders alone ---

// Runs f, which may only throw what a decoder says of bytes from outside. False where it threw.
template <class F>
bool reads(F f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    const ErrorKind kind = error.kind();
    if (kind != ErrorKind::protocol_error && kind != ErrorKind::resource_exhausted &&
        kind != ErrorKind::type_mismatch && kind != ErrorKind::unsupported)
      ADD_FAILURE() << "a decoder threw " << to_string(kind) << ": " << error.what();
  } catch (const std::exception& other) {
    ADD_FAILURE() << "a decoder threw what is no Error: " << other.what();
  }
  return false;
}

// Reads every byte of a value; the first few values also by every reader that does not fit, and beyond the
// end.
class Walk {
 public:
  void value(const ValueReader& value) {
    if (refusals_ != 0) {
      --refusals_;
      refused(value);
    }
    switch (value.kind()) {
      case ValueKind::nil:
        return;
      case ValueKind::boolean:
        return touch(value.get_bool());
      case ValueKind::int_:
        return touch(value.get_int());
      case ValueKind::uint:
        return touch(value.get_uint());
      case ValueKind::real:
        return touch(value.get_real());
      case ValueKind::text:
        return bytes(std::as_bytes(std::span(value.get_text())));
      case ValueKind::bytes:
        return bytes(value.get_bytes());
      case ValueKind::attachment:
        return bytes(value.get_attachment().bytes());
      case ValueKind::object:
        return touch(value.object_type());
      case ValueKind::variant:
        touch(value.variant_index());
        return this->value(value.variant_value());
      default:
        for (std::size_t i = 0, n = value.size(); i < n; ++i) element(value, i);
    }
  }

 private:
  void refused(const ValueReader& value) {
    reads([&] { touch(value.get_bool()); });
    reads([&] { touch(value.get_int()); });
    reads([&] { touch(value.get_uint()); });
    reads([&] { touch(value.get_real()); });
    reads([&] { bytes(std::as_bytes(std::span(value.get_text()))); });
    reads([&] { bytes(value.get_bytes()); });
    reads([&] { bytes(value.get_attachment().bytes()); });
    reads([&] { touch(value.object_type()); });
    reads([&] { touch(value.variant_value().kind()); });
    ValueReader field;
    for (const std::string_view name : {"", "text", "choice", "nowhere"})
      reads([&] {
        if (value.find_field(name, 2, field)) touch(field.kind());
      });
    std::size_t n = 0;
    if (!reads([&] { n = value.size(); })) return;
    for (const std::size_t i : {n, n + 1, std::size_t{1} << 32, std::size_t{1} << 63})
      EXPECT_FALSE(reads([&] { element(value, i); })) << "an element beyond the end";
  }
  template <class T>
  void touch(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void bytes(std::span<const std::byte> all) { seen_ = crc32c(all, seen_); }
  void element(const ValueReader& sequence, std::size_t i) {
    switch (sequence.kind()) {
      case ValueKind::list:
        return value(sequence.at(i));
      case ValueKind::record:
        bytes(std::as_bytes(std::span(sequence.field_name(i))));
        return value(sequence.field_at(i));
      case ValueKind::map:
        value(sequence.map_key(i));
        return value(sequence.map_value(i));
      case ValueKind::ints:
        return touch(sequence.int_at(i));
      default:
        return touch(sequence.real_at(i));
    }
  }
  std::uint32_t seen_ = 0;
  int refusals_ = 12;
};

class Decoders {
 public:
  std::size_t frames = 0, refused = 0, rendered = 0, decoded = 0;

  // A connection's bytes in pieces of any size, until one is refused.
  void stream(FrameMutator& random, std::span<const std::byte> bytes) {
    FrameReader reader(small_limits());
    const std::size_t piece = random.one_in(4) ? 1 + random.below(100) : SIZE_MAX;
    const bool whole = reads([&] {
      while (!bytes.empty()) {
        std::size_t taken = 0;
        for (const auto target : reader.targets()) {
          const std::size_t n = std::min({target.size(), bytes.size(), piece - taken});
          std::copy_n(bytes.begin(), n, target.begin());
          bytes = bytes.subspan(n);
          taken += n;
        }
        reader.advance(taken);
        while (auto frame = reader.next()) message(*frame);
      }
    });
    if (!whole) ++refused;
  }

 private:
  // A reader each, as Cap'n Proto counts what one reads.
  template <class F>
  bool with(const InboundFrame& frame, F f) {
    return reads([&] {
      IncomingMessage message(frame, small_limits());
      f(message);
    });
  }

  void message(const InboundFrame& frame) {
    ++frames;
    EXPECT_LE(frame.header.size() + frame.prefix.body_bytes, small_limits().header + small_limits().message);
    // Of whatever kind it is: what is not there reads as its default, or is refused.
    with(frame, [&](IncomingMessage& message) {
      reads([&] { (void)message.goodbye(); });
      reads([&] { (void)message.failure(); });
      reads([&] { (void)message.request(); });
      reads([&] { (void)message.hello(); });
      reads([&] { (void)message.unknown_required([](std::string_view key) { return key == "rref"; }); });
      reads([&] { (void)message.attachment(~0U); });
    });
    for (const std::string_view key : {"rref", "pass", ""})
      values(frame, [&](IncomingMessage& message) { return message.section(key); });
    if (frame.prefix.kind == FrameKind::reply)
      values(frame, [](IncomingMessage& message) { return std::optional(message.result()); });
    std::size_t arguments = 0;
    with(frame, [&](IncomingMessage& message) { arguments = message.argument_count(); });
    for (std::size_t i = 0; i < std::min<std::size_t>(arguments, 4); ++i)
      values(frame, [i](IncomingMessage& message) { return std::optional(message.argument(i)); });
  }

  template <class Get>
  void values(const InboundFrame& frame, Get get) {
    const auto each = [&](auto use) {
      with(frame, [&](IncomingMessage& message) {
        if (const std::optional<ValueReader> value = get(message)) use(*value);
      });
    };
    each([](const ValueReader& value) { Walk().value(value); });
    each([&](const ValueReader& value) {
      (void)render(value);
      ++rendered;
    });
    typed<Everything, std::vector<Everything>, std::string, std::vector<Buffer>, Buffer, Foreign, Unit, bool,
          std::vector<std::optional<std::int64_t>>, std::vector<double>, std::vector<std::int8_t>,
          std::array<float, 2>, std::array<std::uint8_t, 40>, std::map<std::string, ValueTree>, ValueTree>(
        each);
  }
  template <class... T, class Each>
  void typed(Each each) {
    (each([&](const ValueReader& value) {
       (void)Codec<T>::decode(value);
       ++decoded;
     }),
     ...);
  }
};

TEST(MutatedFrames, DecodersRefuseOrReadThem) {
  Running running;
  Decoders decoders;
  const auto [first, last] = numbers(decoder_frames);
  for (std::uint64_t seed = first; seed < last; ++seed) {
    SCOPED_TRACE("replay with WEFT_SEED=" + std::to_string(seed));
    Running::now(seed, seed);
    FrameMutator random(seed, small_limits());
    // Those with values in them more often than the others.
    const FrameKind values = random.one_in(2) ? FrameKind::request : FrameKind::reply;
    decoders.stream(random, stream_of(random, random.one_in(2) ? random.pick(all_kinds) : values));
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
}  // namespace weft::rpc
