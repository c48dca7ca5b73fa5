#include <weft/parallel/elastic/leave_on_signal.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <thread>

namespace weft::elastic {

struct LeaveOnSignal::Impl {
  Impl(State& state, int number) : signal(io, number) {
    signal.async_wait([&state](const auto& error, int) {
      if (!error) state.leave();
    });
    thread = std::thread([this] { io.run(); });
  }
  ~Impl() {
    io.stop();
    thread.join();
  }

  asio::io_context io;
  asio::signal_set signal;
  std::thread thread;
};

LeaveOnSignal::LeaveOnSignal(State& state, int signal) : impl_(std::make_unique<Impl>(state, signal)) {}
LeaveOnSignal::~LeaveOnSignal() = default;

}  // namespace weft::elastic
