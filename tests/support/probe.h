// Shared by the tests of mutated frames: a service with arguments of every kind, valid frames of every kind
// as a starting point, and the seed numbers that reproduce each mutation.
#pragma once

#include <weft/rpc/codec/capnp_codec.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/wire/checksum.h>
#include <weft/rpc/wire/message.capnp.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/support/frame_mutator.h"
#include "tests/support/messages.h"

// Defined if the process runs under a sanitizer.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*)());

namespace weft::rpc::probe {

using test::Bytes;
using test::FrameMutator;

// --- Numbers ---

// Returns the range of seed numbers of a test with `n` seeds: all of them, or only $WEFT_SEED.
inline std::pair<std::uint64_t, std::uint64_t> numbers(std::uint64_t n) {
  const char* one = std::getenv("WEFT_SEED");
  if (one == nullptr) return {0, n};
  const std::uint64_t seed = std::strtoull(one, nullptr, 10);
  return {seed, seed + 1};
}

inline std::atomic<std::uint64_t> running_first{0}, running_last{0};

// Prints the running seeds if the process dies.
inline void print_running() {
  char line[96];
  const int n = std::snprintf(line, sizeof line, "mutated frames: died with WEFT_SEED from %llu to %llu\n",
                              static_cast<unsigned long long>(running_first.load()),
                              static_cast<unsigned long long>(running_last.load()));
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(n));
}
inline void on_signal(int number) {
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

// --- The service ---

enum class Color : std::uint8_t { red, green };
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
  Color color = Color::red;
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
WEFT_CODEC(Everything, flag, tiny, count, ratio, color, text, bytes, reals, floats, ints, uints, three,
           shelves, marks, twice, triple, choice)
struct ValueTree {  // the sender chooses the depth
  std::int64_t number = 0;
  std::vector<ValueTree> below;
};
WEFT_CODEC(ValueTree, number, below)
using Foreign = CapnpMessage<schema::Hello>;  // any Cap'n Proto struct

inline Everything everything() {
  Everything all{true,     -7,     1ULL << 63, 0.5F,      Color::green, "text", Bytes(40, std::byte{1}),
                 {1, 2.5}, {1, 2}, {-1, 1},    {1, 2, 3}, {-1, 0, 1}};
  all.shelves["upper"] = {{"cup", 0.2}, {"plate", std::nullopt}};
  all.shelves["lower"] = {};
  all.marks = {{1, true}, {-5, false}};
  all.twice = std::optional<std::int32_t>(3);
  all.triple = {1, "two", {}};
  all.choice = std::vector<std::string>{"a", "b"};
  return all;
}
inline Foreign foreign() {
  Foreign message;
  message.builder().setName("inner");
  message.builder().initAddresses(2).set(1, "somewhere");
  return message;
}
inline Buffer filled(std::size_t size) {
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
  // Waits until the caller or its connection ends.
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

// --- Recorded frames ---

inline Limits small_limits() {
  Limits limits;
  limits.message = 4U << 20;
  limits.header = 1U << 20;
  limits.attachments = 64;
  limits.in_flight = 8U << 20;
  return limits;
}

template <class... Arguments>
inline std::unique_ptr<OutgoingMessage> request(const Arguments&... arguments) {
  auto message = OutgoingMessage::request(sizeof...(arguments));
  std::size_t i = 0;
  (Codec<Arguments>::encode(message->argument(i++), arguments), ...);
  return message;
}
inline Bytes sealed(std::unique_ptr<OutgoingMessage> message, std::string_view method, std::uint64_t id,
                    std::uint16_t flags = 0, std::uint64_t timeout_ns = 0) {
  return test::bytes_of(message->seal_request({name_hash(method), 1, timeout_ns}, id, flags));
}
template <class T>
Bytes reply(const T& value, std::uint64_t id) {
  auto message = OutgoingMessage::reply();
  Codec<T>::encode(message->result(), value);
  return test::bytes_of(message->seal_reply(id));
}
inline Bytes plain(FrameKind kind, std::uint64_t id) {
  return test::bytes_of(OutgoingMessage::plain(kind, id));
}
inline Bytes hello(const std::string& name) {
  return test::bytes_of(
      OutgoingMessage::hello({1, 1, 0, name, 77, {"tcp://127.0.0.1:1", "unix:///nowhere"}}));
}

// Valid frames of one kind, in all its shapes.
inline std::vector<Bytes> recorded(FrameKind kind) {
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
      const Error with_value = with_payload(Error(ErrorKind::aborted, "why"), Small{"cup", 0.2});
      frames.push_back(test::bytes_of(OutgoingMessage::failure(
          7, {.kind = with_value.kind(), .message = with_value.what(), .payload = with_value.payload()})));
      break;
    }
    case FrameKind::goodbye:
      frames = {test::bytes_of(OutgoingMessage::goodbye(std::nullopt)),
                test::bytes_of(OutgoingMessage::goodbye(Error(ErrorKind::unsupported, "too old"))),
                test::bytes_of(OutgoingMessage::goodbye(Error(ErrorKind{999}, "")))};
      break;
    case FrameKind::credit:
      for (const std::uint64_t n : {0ULL, 1ULL, 1000ULL, ~0ULL})
        frames.push_back(test::bytes_of(OutgoingMessage::credit({static_cast<std::uint32_t>(n), n})));
      break;
    default:
      for (const std::uint64_t id : {0, 1, 5}) frames.push_back(plain(kind, id));
  }
  return frames;
}

inline const std::vector<FrameKind> all_kinds{FrameKind::hello,    FrameKind::request, FrameKind::reply,
                                              FrameKind::cancel,   FrameKind::goodbye, FrameKind::ping,
                                              FrameKind::pong,     FrameKind::credit,  FrameKind::lane,
                                              FrameKind::received, FrameKind::resume};
inline const std::vector<Bytes>& samples(FrameKind kind) {
  static const auto all = [] {
    std::map<FrameKind, std::vector<Bytes>> made;
    for (const FrameKind each : all_kinds) made[each] = recorded(each);
    return made;
  }();
  return all.at(kind);
}
inline const Bytes& any_sample(FrameMutator& random) { return random.pick(samples(random.pick(all_kinds))); }

// The bytes of a connection for a seed: a mutated frame of the kind, perhaps twice, perhaps with valid frames
// before, after or between (a missing frame, an additional frame or a wrong order).
inline Bytes stream_of(FrameMutator& random, FrameKind kind) {
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

}  // namespace weft::rpc::probe
