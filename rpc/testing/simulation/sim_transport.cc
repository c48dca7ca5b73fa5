#include <weft/rpc/testing/simulation/sim_transport.h>

#include <weft/rpc/testing/simulation/sim_world.h>
#include <weft/rpc/transport/stream_connection.h>

#include <asio/error.hpp>

#include <utility>

namespace weft::test {

using rpc::Error;
using rpc::ErrorKind;

namespace {

std::shared_ptr<SimLoop> sim_loop(const std::shared_ptr<rpc::Loop>& loop) {
  auto simulated = std::dynamic_pointer_cast<SimLoop>(loop);
  if (simulated == nullptr && loop != nullptr)
    throw Error(ErrorKind::invalid_argument, "a simulated stream needs a simulated loop");
  return simulated;
}

}  // namespace

// One connect(), until `done` has been called once.
struct SimTransport::Attempt {
  std::shared_ptr<SimLoop> loop;
  std::string target;
  Connected done;
  rpc::Loop::TimerId timer = 0;

  void fail(const std::string& reason, bool refused = false) {
    using rpc::Refusal;
    if (!done) return;
    std::exchange(
        done, nullptr)(rpc::cannot_connect(target, reason, refused ? Refusal::on_this_host : Refusal::none));
  }
};

void SimTransport::connect(const rpc::Address& address, std::shared_ptr<rpc::Loop> loop,
                           const rpc::ConnectionOptions& options, Connected done) {
  if (address.scheme != scheme() || address.path.empty())
    throw Error(ErrorKind::invalid_argument, address.text() + " is not a simulated address");
  auto attempt = std::make_shared<Attempt>(Attempt{sim_loop(loop), address.text(), std::move(done)});
  std::erase_if(attempts_, [](const auto& old) { return old.expired(); });
  attempts_.push_back(attempt);
  if (options.connect_timeout.count() > 0)
    attempt->timer = attempt->loop->schedule(
        rpc::later(attempt->loop->now(), options.connect_timeout), [weak = std::weak_ptr(attempt)] {
          if (const auto late = weak.lock()) late->fail("no answer in time (AgentOptions::connect_timeout)");
        });
  process_.world().network().connect(
      attempt->loop, address.path,
      [attempt, options](std::unique_ptr<SimStream> stream, std::error_code error) {
        attempt->loop->post([attempt, options, error, stream = std::move(stream)]() mutable {
          attempt->loop->cancel(attempt->timer);
          if (error) return attempt->fail(error.message(), error == asio::error::connection_refused);
          if (!attempt->done) return;  // it has failed already
          std::exchange(attempt->done, nullptr)(std::static_pointer_cast<rpc::Connection>(
              rpc::make_stream_connection(std::move(stream), attempt->loop, options)));
        });
      });
}

void SimTransport::shut_down() {
  for (const auto& weak : std::exchange(attempts_, {}))
    if (const auto attempt = weak.lock())
      attempt->loop->post([attempt] { attempt->fail("given up: this agent shuts down"); });
}

std::unique_ptr<rpc::Listener> SimTransport::listen(const rpc::Address& address, PickLoop pick,
                                                    const rpc::ConnectionOptions& options, bool,
                                                    Accepted accepted) {
  if (address.scheme != scheme() || address.path.empty())
    throw Error(ErrorKind::invalid_argument, address.text() + " is not a simulated address");
  auto door = std::make_shared<SimNetwork::Door>();
  door->process = &process_;
  auto picked = std::make_shared<std::shared_ptr<SimLoop>>();
  door->pick = [pick = std::move(pick), picked] { return *picked = sim_loop(pick()); };
  door->opened = [picked, options, accepted = std::move(accepted)](std::unique_ptr<SimStream> stream) {
    const std::shared_ptr<SimLoop> loop = *picked;
    loop->post([loop, options, accepted, stream = std::move(stream)]() mutable {
      accepted(rpc::make_stream_connection(std::move(stream), loop, options));
    });
  };
  SimNetwork& network = process_.world().network();
  if (!network.listen(address.path, door))
    throw Error(ErrorKind::unavailable, "cannot listen on " + address.text() + ": address in use");
  return std::make_unique<rpc::Listener>(
      address, [&network, name = address.path, door] { network.stop_listening(name, door); });
}

}  // namespace weft::test
