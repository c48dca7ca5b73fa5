// Faults that a test injects into the agents of a simulation, to verify that the simulation detects them.
// Each fault violates one guarantee.
//
// Most faults are injected by a connection that wraps the agent's real one. A fault occurs with a given
// probability, drawn from a separate random generator, so that most operations still succeed.
#pragma once

#include <weft/rpc/testing/simulation/sim_agent.h>
#include <weft/rpc/testing/simulation/sim_transport.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace weft::test {

enum class Fault : std::uint8_t {
  none,
  answer_is_lost,             // a connection drops a reply
  request_comes_twice,        // a connection delivers a frame twice
  completes_twice,            // a caller treats its cancel() as completion
  says_not_sent,              // a caller states that what it sent was not sent
  memory_is_let_go_early,     // a connection releases attachments when they are queued, not when they have
                              // been sent
  touches_what_it_delivered,  // a connection writes into attachments that it has handed over
  memory_is_kept,             // a connection never releases the attachments that it sent
  call_is_kept,               // a handler that waits for its cancellation does not see it
  connection_is_kept,         // a connection that is closed stays open
  credit_is_lost,             // a connection drops the credit that is returned
};

// The planted fault of a world, and the objects that it keeps. It lives as long as its world.
class Plant {
 public:
  Plant(Fault fault, std::uint64_t seed) : fault_(fault), random_(seed) {}

  Fault fault() const { return fault_; }
  // Returns whether the fault occurs now. per_mille: higher for a fault that has few occasions or that is
  // often harmless.
  bool bears(Fault fault, std::uint64_t per_mille = 200) {
    return fault == fault_ && random_.chance(per_mille);
  }
  void keep(std::shared_ptr<void> object) { kept_.push_back(std::move(object)); }

 private:
  const Fault fault_;
  SimRandom random_;
  std::vector<std::shared_ptr<void>> kept_;
};

class FaultyObserver final : public rpc::ConnectionObserver {
 public:
  FaultyObserver(std::shared_ptr<rpc::ConnectionObserver> observer, std::shared_ptr<rpc::Loop> loop,
                 Plant& plant)
      : observer_(std::move(observer)), loop_(std::move(loop)), plant_(plant) {}

  void on_frame(rpc::InboundFrame&& frame) override {
    const bool request = frame.prefix.kind == rpc::FrameKind::request;
    if (frame.prefix.kind == rpc::FrameKind::reply && plant_.bears(Fault::answer_is_lost)) return;
    if (frame.prefix.kind == rpc::FrameKind::credit && plant_.bears(Fault::credit_is_lost)) return;
    if (request && plant_.bears(Fault::request_comes_twice)) observer_->on_frame(rpc::InboundFrame(frame));
    if (!frame.attachments.empty() && plant_.bears(Fault::touches_what_it_delivered, 700))
      loop_->schedule(rpc::later(loop_->now(), std::chrono::microseconds(200)),
                      [touched = frame.attachments]() mutable {
                        for (rpc::Buffer& bytes : touched)
                          if (bytes.size() != 0) bytes.data()[0] ^= std::byte{0xff};
                      });
    observer_->on_frame(std::move(frame));
  }
  void on_closed(const rpc::Error& reason) override {
    if (!std::exchange(closed_, true)) observer_->on_closed(reason);
  }

 private:
  const std::shared_ptr<rpc::ConnectionObserver> observer_;
  const std::shared_ptr<rpc::Loop> loop_;
  Plant& plant_;
  bool closed_ = false;
};

class FaultyConnection final : public rpc::Connection {
 public:
  FaultyConnection(std::shared_ptr<rpc::Connection> inner, Plant& plant)
      : inner_(std::move(inner)), plant_(plant) {}

  const std::shared_ptr<rpc::Loop>& loop() const override { return inner_->loop(); }
  void start(std::shared_ptr<rpc::ConnectionObserver> observer) override {
    observer_ = std::make_shared<FaultyObserver>(std::move(observer), loop(), plant_);
    inner_->start(observer_);
  }
  void send(rpc::OutboundFrame&& frame) override {
    for (rpc::Buffer& bytes : frame.attachments) {
      if (plant_.bears(Fault::memory_is_kept)) plant_.keep(std::make_shared<rpc::Buffer>(bytes));
      // A shared pointer that does not own the memory.
      if (plant_.bears(Fault::memory_is_let_go_early))
        bytes = rpc::Buffer(std::make_shared<int>(), bytes.data(), bytes.size());
    }
    inner_->send(std::move(frame));
  }
  std::uint64_t received_bytes() const override { return inner_->received_bytes(); }
  void finish(const rpc::Error& reason) override {
    if (!stays_open(reason, 200)) inner_->finish(reason);
  }
  void close(const rpc::Error& reason) override {
    if (!stays_open(reason, 900)) inner_->close(reason);
  }
  std::string describe() const override { return inner_->describe(); }
  std::string identity() const override { return inner_->identity(); }

 private:
  bool stays_open(const rpc::Error& reason, std::uint64_t per_mille) {
    if (!plant_.bears(Fault::connection_is_kept, per_mille)) return false;
    plant_.keep(inner_);
    loop()->post([observer = observer_, reason] {
      if (observer != nullptr) observer->on_closed(reason);  // the connection may not have been started
    });
    return true;
  }

  const std::shared_ptr<rpc::Connection> inner_;
  Plant& plant_;
  std::shared_ptr<FaultyObserver> observer_;
};

class FaultyTransport final : public rpc::Transport {
 public:
  FaultyTransport(SimProcess& process, Plant& plant) : inner_(process), plant_(plant) {}

  std::string_view scheme() const override { return inner_.scheme(); }
  void connect(const rpc::Address& address, std::shared_ptr<rpc::Loop> loop,
               const rpc::ConnectionOptions& options, Connected done) override {
    inner_.connect(address, std::move(loop), options,
                   [&plant = plant_,
                    done = std::move(done)](rpc::Result<std::shared_ptr<rpc::Connection>> made) mutable {
                     if (!made.ok()) return done(std::move(made));
                     done(std::static_pointer_cast<rpc::Connection>(
                         std::make_shared<FaultyConnection>(std::move(made).get(), plant)));
                   });
  }
  void shut_down() override { inner_.shut_down(); }
  std::unique_ptr<rpc::Listener> listen(const rpc::Address& address, PickLoop pick,
                                        const rpc::ConnectionOptions& options, bool allow_remote,
                                        Accepted accepted) override {
    return inner_.listen(
        address, std::move(pick), options, allow_remote,
        [&plant = plant_, accepted = std::move(accepted)](std::shared_ptr<rpc::Connection> connection) {
          accepted(std::make_shared<FaultyConnection>(std::move(connection), plant));
        });
  }

 private:
  SimTransport inner_;
  Plant& plant_;
};

// start_agent(), with connections that have the planted fault.
inline rpc::Agent& start_planted_agent(SimProcess& process, rpc::AgentOptions options, Plant& plant,
                                       rpc::Layers layers = {}) {
  rpc::Runtime runtime = sim_runtime(process, std::max<std::size_t>(options.loops, 1));
  if (plant.fault() != Fault::none) runtime.transports = {std::make_shared<FaultyTransport>(process, plant)};
  return start_agent(process, std::move(runtime), std::move(options), std::move(layers));
}

}  // namespace weft::test
