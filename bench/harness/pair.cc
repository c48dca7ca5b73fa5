#include "bench/harness/pair.h"

#include <nlohmann/json.hpp>

#include <stdexcept>

namespace weft::bench {
namespace {

constexpr auto start_up = std::chrono::seconds{20};
constexpr auto tear_down = std::chrono::seconds{5};

// The client's report. A server reports nothing before it gets a request. If the channel of the server is
// ready first, the server has died, and the client may wait for the server without limit.
std::string result_of(Process& client, Process& server, std::chrono::milliseconds timeout) {
  const auto first = first_ready({&client.channel(), &server.channel()}, timeout);
  if (!first)
    throw std::runtime_error("client: no end within " + std::to_string(timeout.count() / 1000) + " s");
  if (*first != 0) {
    const std::string cause = server.end(tear_down);
    throw std::runtime_error("server: " + (cause.empty() ? "ended before its client" : cause));
  }
  try {
    return client.expect("client", tear_down);
  } catch (const std::exception& error) {
    // The death of the server is often the cause of the client's death.
    const std::string cause = server.end(std::chrono::milliseconds{100});
    throw std::runtime_error(cause.empty() || cause.starts_with("was killed") ? error.what()
                                                                              : "server: " + cause);
  }
}

bool better(const Outcome& one, const Outcome& other) {
  if (!one.error.empty() || !other.error.empty()) return one.error.empty();
  if (one.figures.empty()) return false;
  const std::string figure = leading_figure(one.figures);
  if (!other.figures.contains(figure)) return true;
  const double a = one.figures.at(figure), b = other.figures.at(figure);
  return higher_is_better(figure) ? a > b : a < b;
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
    const std::string address = server.expect("server", start_up);
    Process client(setting.pins, 1, [&](Channel& channel) {
      ClientEnd end(channel, address, setting.budget);
      pair.measure(end);
    });
    const std::string message = result_of(client, server, pair.timeout + 5 * longest);
    const auto result = nlohmann::json::parse(message);
    server.channel().send("end");
    outcome.threads =
        server.expect("server", tear_down) + "/" + std::to_string(result["threads"].get<std::size_t>());
    outcome.figures = result["figures"].get<Figures>();
    // The exit of the processes is not measured.
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

Outcome measure_best(const std::vector<Way>& ways, const Setting& setting) {
  Outcome best;
  for (const Way& way : ways) {
    Outcome outcome = way.measure(setting);
    outcome.notes["way"] = way.name;
    if (&way == &ways.front() || better(outcome, best)) best = std::move(outcome);
  }
  return best;
}

}  // namespace weft::bench
