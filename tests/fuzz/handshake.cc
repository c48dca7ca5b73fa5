// A peer sends any bytes to an agent that serves and to an agent that calls. The world is simulated, so that
// the run of an input needs no real time.
//
// No agent may crash or spin. The connection ends, all calls end, and no state is left.
#include <weft/rpc/testing/simulation/sim_agent.h>

#include <asio/error.hpp>

#include <array>
#include <memory>

#include "tests/fuzz/frames.h"
#include "tests/support/probe.h"

namespace weft::fuzz {
namespace {

using namespace std::chrono_literals;
using rpc::probe::Probe;

constexpr std::uint8_t greets = 2;  // a valid Hello is sent first
constexpr std::uint8_t is_called = 4;
constexpr std::uint8_t closes = 8;  // or else it ends only its direction

// Sends the bytes of the input and reads all replies, until the other side has closed.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  Peer(std::shared_ptr<rpc::ByteStream> stream, const FrameInput& input) : stream_(std::move(stream)) {
    if (input.how & greets) bytes_ = rpc::probe::hello("peer");
    bytes_.insert(bytes_.end(), input.stream.begin(), input.stream.end());
    piece_ = input.piece;
    closes_ = (input.how & closes) != 0;
  }
  void start() {
    read();
    write();
  }

 private:
  void write() {
    std::error_code error;
    while (written_ != bytes_.size()) {
      const auto rest = std::as_bytes(std::span(bytes_)).subspan(written_);
      const std::span<const std::byte> out[] = {rest.first(std::min(rest.size(), piece_))};
      written_ += stream_->write(out, error);
      if (error == asio::error::would_block)
        return stream_->when_writable([self = shared_from_this()] { self->write(); });
      if (error) return;
    }
    if (closes_) return stream_->close();
    stream_->shut_down_writing(error);
  }
  void read() {
    for (;;) {
      std::array<std::byte, 4096> some;
      const std::span<std::byte> into[] = {some};
      std::error_code error;
      stream_->read(into, error);
      if (error == asio::error::would_block)
        return stream_->when_readable([self = shared_from_this()] { self->read(); });
      if (error) return;
    }
  }

  const std::shared_ptr<rpc::ByteStream> stream_;
  std::vector<std::byte> bytes_;
  std::size_t written_ = 0, piece_ = 0;
  bool closes_ = false;
};

// An agent with methods of every kind, and a peer process that sends the bytes of the input.
class Handshake {
 public:
  explicit Handshake(const FrameInput& input)
      : input_(input),
        node_(world_.start("node")),
        agent_(
            test::start_agent(node_, {.limits = rpc::probe::small_limits(), .heartbeat = {.interval = 0s}})),
        peer_(world_.start("peer")),
        loop_(peer_.make_loop()) {
    agent_.serve(std::make_shared<Probe>());
  }

  void run() {
    if (input_.how & is_called) {
      called();
    } else {
      calls();
    }
    // If a peer ends only its direction, the agent may send to it until the timeout of a handshake.
    if (!world_.run_until_idle(1h)) fail("does not come to rest");
    if (calls_in_flight_ != 0) fail("a call did not end");
    if (world_.network().open_streams(node_) != 0) fail("a connection stays open");
    const rpc::AgentCounts counts = agent_.counts();
    if ((input_.how & (greets | closes)) == greets && counts.connections_made != 1)
      fail("a peer with a good Hello does not get in");
    if (counts.serving != 0 || counts.waiting != 0 || counts.connections != 0 || counts.serving_bytes != 0 ||
        counts.memory.lent_bytes != 0)
      fail("something stays behind");
    if (!world_.violations().empty()) fail(world_.violations().front());
  }

 private:
  void calls() {
    world_.network().connect(loop_, "node", [this](std::unique_ptr<test::SimStream> stream, std::error_code) {
      if (stream != nullptr) talk(std::move(stream));
    });
  }
  void called() {
    auto door = std::make_shared<test::SimNetwork::Door>();
    door->process = &peer_;
    door->pick = [this] { return loop_; };
    door->opened = [this, door = door.get()](std::unique_ptr<test::SimStream> stream) {
      door->pick = [] { return std::shared_ptr<test::SimLoop>(); };  // once
      talk(std::move(stream));
    };
    world_.network().listen("peer", door);
    const rpc::Peer peer = agent_.connect("sim://peer").with({.timeout = 10min});
    watch(peer.call<&Probe::echo>("text"));
    watch(peer.call<&Probe::take>(rpc::probe::everything(), rpc::probe::filled(2000)));
    watch(peer.call<&Probe::blobs>(std::vector<rpc::Buffer>{rpc::probe::filled(10)}));
    watch(peer.call<&Probe::wait>());
  }
  template <class T>
  void watch(rpc::Future<T> future) {
    ++calls_in_flight_;
    std::move(future).then([this](rpc::Result<T>&&) {
      if (calls_in_flight_-- == 0) fail("a call ended twice");
    });
  }
  void talk(std::unique_ptr<test::SimStream> stream) {
    auto talker = std::make_shared<Peer>(std::move(stream), input_);
    loop_->post([talker] { talker->start(); });
  }

  const FrameInput& input_;
  std::size_t calls_in_flight_ = 0;
  test::SimWorld world_{1, {.trace = 0}};
  test::SimProcess& node_;
  rpc::Agent& agent_;
  test::SimProcess& peer_;
  const std::shared_ptr<test::SimLoop> loop_;
};

}  // namespace

Corpus seeds() {
  Corpus corpus;
  int kind_number = 0;
  for (const rpc::FrameKind kind : rpc::probe::all_kinds) {
    ++kind_number;
    int number = 0;
    for (const auto& frame : rpc::probe::samples(kind)) {
      ++number;
      if (frame.size() > 3000) continue;
      const std::string name = std::to_string(kind_number) + "_" + std::to_string(number);
      corpus["says" + name] = input(
          {static_cast<std::uint8_t>(FrameInput::resealed | greets | (number % 2 ? closes : 0)), 0}, frame);
      if (kind == rpc::FrameKind::hello || kind == rpc::FrameKind::reply)
        corpus["answers" + name] =
            input({static_cast<std::uint8_t>(FrameInput::resealed | is_called |
                                             (kind == rpc::FrameKind::hello ? 0 : greets)),
                   0},
                  frame);
    }
  }
  corpus["pieces"] = input({0, 7}, rpc::probe::hello("someone"));
  return corpus;
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const weft::fuzz::FrameInput input(data, size);
  weft::fuzz::Handshake(input).run();
  return 0;
}
