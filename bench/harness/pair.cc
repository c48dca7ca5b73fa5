#include "bench/harness/pair.h"

#include <nlohmann/json.hpp>

#include <stdexcept>

namespace weft::bench {
namespace {

constexpr auto start_up = std::chrono::seconds{20};
constexpr auto tear_down = std::chrono::seconds{5};

// What a process says instead of what was waited for.
std::string expect(Process& process, const std::string& who, std::chrono::milliseconds patience) {
  std::optional<std::string> message;
  std::string reason;
  try {
    message = process.channel().receive(patience);
    if (!message) reason = process.end(tear_down);
  } catch (const std::exception& error) {
    reason = error.what();
  }
  if (!message) throw std::runtime_error(who + ": " + (reason.empty() ? "ended without a result" : reason));
  return *message;
}

}  // namespace

void ServerEnd::wait_for_client() {
  channel_.receive();
  channel_.send(std::to_string(count_threads()));
}

void ClientEnd::report(const Figures& figures) {
  channel_.send(nlohmann::json{{"figures", figures}, {"threads", count_threads()}}.dump());
}

Outcome measure_pair(const Pair& pair, const Setting& setting) {
  Outcome outcome;
  try {
    const auto longest = std::chrono::duration_cast<std::chrono::milliseconds>(setting.budget.warm_up +
                                                                               setting.budget.duration);
    Process server(setting.pins, 0, [&](Channel& channel) {
      ServerEnd end(channel);
      pair.serve(end);
    });
    const std::string address = expect(server, "server", start_up);
    Process client(setting.pins, 1, [&](Channel& channel) {
      ClientEnd end(channel, address, setting.budget);
      pair.measure(end);
    });
    std::string message;
    try {
      message = expect(client, "client", 2 * start_up + 5 * longest);
    } catch (const std::exception& error) {
      // The client often dies of the server's death.
      const std::string cause = server.end(std::chrono::milliseconds{100});
      throw std::runtime_error(cause.empty() || cause.starts_with("was killed") ? error.what()
                                                                                : "server: " + cause);
    }
    const auto result = nlohmann::json::parse(message);
    server.channel().send("end");
    outcome.threads =
        expect(server, "server", tear_down) + "/" + std::to_string(result["threads"].get<std::size_t>());
    outcome.figures = result["figures"].get<Figures>();
    // How they end is not what is measured.
    client.end(tear_down);
    server.end(tear_down);
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  return outcome;
}

Contender contender(std::string peer, Notes notes, Pair pair) {
  return {std::move(peer), std::move(notes),
          [pair = std::move(pair)](const Setting& setting) { return measure_pair(pair, setting); }};
}

}  // namespace weft::bench
