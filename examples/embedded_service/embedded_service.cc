// The RPC layer in an existing Asio program. The layer runs on the event loop of the program, together with
// the work of the program. No LibTorch.
//
//   embedded_service rates tcp://127.0.0.1:7001                         a service that the next one calls
//   embedded_service market tcp://127.0.0.1:7002 tcp://127.0.0.1:7001   the existing program, until SIGTERM.
//                                                                       It may have several addresses of
//                                                                       rates
//   embedded_service last tcp://127.0.0.1:7002 WEFT                     its clients
//   embedded_service follow tcp://127.0.0.1:7002 WEFT [QUOTES]
//   embedded_service convert tcp://127.0.0.1:7002 10 EUR [MILLISECONDS]
//
// Two processes of the rates, which start again when they fail, at tcp://127.0.0.1:7011 and 7012, and a
// market that calls both. Kill one of the processes: the market's calls go to the other one until it is back.
//
//   weft launch --keep-running --role rates=2 --rendezvous 127.0.0.1:7011 embedded_service rates
//   embedded_service market tcp://127.0.0.1:7002 tcp://127.0.0.1:7011 tcp://127.0.0.1:7012
//
// WEFT_CERTIFICATES=FOLDER makes the agents use mutual TLS, and lets the services listen on addresses other
// than loopback. FOLDER has NAME.pem and NAME-key.pem for the names rates, market and client, and ca.pem. On
// SIGHUP the market reads the files again. WEFT_METRICS=HOST:PORT is the address of the market's probes and
// metrics. docs/embedding.md explains the program, and operations/ runs it under systemd, with Prometheus.
#include <weft/rpc/balance/peer_set.h>
#include <weft/rpc/observe/endpoint.h>
#include <weft/rpc/rpc.h>

#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/signal_set.hpp>
#include <asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

using namespace weft;
using namespace std::chrono_literals;

struct Quote {
  std::string symbol;
  double price = 0;
};
WEFT_CODEC(Quote, symbol, price)  // makes the struct an argument or result of calls

struct Rates {
  double rate(rpc::CallContext& call, std::string currency) {
    const bool hurried = call.deadline().has_value();
    std::printf("rate of %s%s\n", currency.c_str(), hurried ? ", within a deadline" : "");
    const auto found = table.find(currency);
    if (found == table.end()) throw rpc::Error(rpc::ErrorKind::not_found, "no rate for '" + currency + "'");
    return found->second;
  }
  const std::map<std::string, double> table{{"EUR", 1.25}, {"JPY", 0.0075}};
  using Service = rpc::Service<"rates", rpc::Method<"rate", &Rates::rate>>;
};

class Market {
 public:
  explicit Market(rpc::PeerSet rates) : rates_(std::move(rates)) {}

  // Runs on the event loop of the program, as tick() does. So it must not block, and neither needs a lock.
  Quote last(std::string symbol) { return {symbol, price_}; }

  // Suspends while a process of the other service works. with(call) gives that call the deadline of this one.
  rpc::Task<double> convert(rpc::CallContext& call, double amount, std::string currency) {
    std::printf("converting %g %s\n", amount, currency.c_str());
    co_return amount* co_await rates_.with(call).call<&Rates::rate>(currency);
  }

  // A stream of all prices from now on. The program writes to the other end of the channel.
  rpc::Stream<Quote> follow(std::string symbol) {
    auto [writer, quotes] = rpc::make_channel<Quote>(16);
    followers_.push_back({symbol, std::move(writer)});
    return std::move(quotes);
  }

  void tick() {
    price_ += 0.25;
    std::erase_if(followers_, [](const Follower& follower) { return !follower.quotes.wanted(); });
    for (Follower& follower : followers_)  // a slow reader misses prices, and no queue grows
      follower.quotes.write({follower.symbol, price_}).then([](auto&&) {});
  }

  using Service =
      rpc::Service<"market", rpc::Method<"last", &Market::last, rpc::idempotent, rpc::non_blocking>,
                   rpc::Method<"follow", &Market::follow, rpc::non_blocking>,
                   rpc::Method<"convert", &Market::convert>>;

 private:
  struct Follower {
    std::string symbol;
    rpc::StreamWriter<Quote> quotes;
  };
  rpc::PeerSet rates_;
  std::vector<Follower> followers_;
  double price_ = 100;
};

// Prints a line for each call that was answered. accept() could reject calls.
class AccessLog final : public rpc::Interceptor {
 public:
  void answered(rpc::CallContext& call, const std::exception_ptr& error) noexcept override {
    const std::string method(call.method());
    if (!method.starts_with("weft."))
      std::printf("%s for %s: %s\n", method.c_str(), call.peer().id.name.c_str(),
                  error ? "failed" : "answered");
  }
};

// The credentials of an agent. Null without WEFT_CERTIFICATES: then the agent listens on loopback only.
std::shared_ptr<rpc::Credentials> credentials_of(const std::string& name) {
  const char* folder = std::getenv("WEFT_CERTIFICATES");
  if (folder == nullptr) return nullptr;
  const std::string file = std::string(folder) + "/" + name;
  return std::make_shared<rpc::Credentials>(
      rpc::CredentialOptions{.certificate_file = file + ".pem",
                             .key_file = file + "-key.pem",
                             .trust_file = std::string(folder) + "/ca.pem"});
}

// The existing program: an event loop that runs the work of the program.
int run_market(const std::string& address, const std::vector<std::string>& rates) {
  asio::io_context io;
  const auto credentials = credentials_of("market");
  const auto metrics = std::make_shared<observe::Metrics>();
  rpc::Agent agent{io,
                   {.name = "market",
                    .listen = {address},
                    .credentials = credentials,
                    .interceptors = {std::make_shared<AccessLog>()}},
                   {metrics->layer()}};
  // A process of the other service may be restarting. A call that it has not begun is retried, there and at
  // the other processes. So is a call that may have run, because rate() is safe to repeat.
  const rpc::PeerSet to_rates{agent, rates};
  auto market = std::make_shared<Market>(to_rates.with({.retry = rpc::RetryPolicy{}, .idempotent = true}));
  agent.serve(market);
  agent.limit("market.convert", {.running = 100, .waiting = 1000});
  const char* http = std::getenv("WEFT_METRICS");
  observe::Endpoint endpoint{// /metrics, /livez, /readyz
                             agent,
                             metrics,
                             {.address = http != nullptr ? http : "127.0.0.1:0"}};

  asio::signal_set changed{io, SIGHUP};
  const std::function<void()> await_change = [&] {
    changed.async_wait([&](asio::error_code error, int) {
      if (error) return;
      try {
        if (credentials != nullptr) credentials->reload();  // for new connections
        std::puts("credentials read anew");
      } catch (const rpc::Error& wrong) {
        std::printf("credentials kept: %s\n", wrong.what());
      }
      await_change();
    });
  };
  await_change();

  asio::steady_timer clock{io};
  const std::function<void()> tick = [&] {
    market->tick();
    clock.expires_after(100ms);
    clock.async_wait([&](asio::error_code error) {
      if (!error) tick();
    });
  };
  tick();

  asio::signal_set stop{io, SIGTERM};
  stop.async_wait([&](asio::error_code, int) {
    agent.drain(20s).then([&](auto&&) { io.stop(); });  // no accepted call is lost
    std::puts("draining");                              // /readyz reports it too
  });
  std::printf("market listens at %s, probes and metrics at %s\n", agent.addresses().front().c_str(),
              endpoint.address().c_str());
  io.run();
  std::puts("drained");
  return 0;
}

std::string variable(const char* name, const std::string& otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

// Under weft launch --keep-running the launcher states the name and the address, and both stay the same when
// it starts the process again.
int run_rates(const std::string& address) {
  asio::io_context io;  // only waits for the signal: the agent runs its own loops
  const std::string name = variable("WEFT_NAME", "rates");
  rpc::Agent agent{{.name = name, .listen = {address}, .credentials = credentials_of(name)}};
  agent.serve(std::make_shared<Rates>());
  asio::signal_set stop{io, SIGTERM};
  stop.async_wait([&](asio::error_code, int) { io.stop(); });
  std::printf("%s listens at %s\n", name.c_str(), agent.addresses().front().c_str());
  io.run();
  return 0;
}

int run_client(const std::vector<std::string>& arguments) {
  const auto credentials = credentials_of("client");
  rpc::Agent agent{{.name = credentials != nullptr ? "client" : "client-" + std::to_string(getpid()),
                    .credentials = credentials}};
  rpc::Peer market = agent.connect(arguments[1]);
  if (arguments[0] == "last") {
    const Quote quote = market.call<&Market::last>(arguments[2]).get();
    std::printf("%s %g\n", quote.symbol.c_str(), quote.price);
  } else if (arguments[0] == "follow") {
    const int wanted = arguments.size() > 3 ? std::stoi(arguments[3]) : 3;
    rpc::Stream<Quote> quotes = market.call<&Market::follow>(arguments[2]).get();
    for (int i = 0; i < wanted; ++i)
      if (const auto quote = quotes.next().get()) std::printf("%s %g\n", quote->symbol.c_str(), quote->price);
  } else {
    if (arguments.size() > 4)
      market = market.with({.timeout = std::chrono::milliseconds{std::stoi(arguments[4])}});
    std::printf("%g\n", market.call<&Market::convert>(std::stod(arguments[2]), arguments[3]).get());
  }
  return 0;
}

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "" : arguments[0];
  try {
    if (what == "rates" && arguments.size() <= 2)
      return run_rates(arguments.size() == 2 ? arguments[1] : variable("WEFT_LISTEN", "tcp://127.0.0.1:0"));
    if (what == "market" && arguments.size() >= 3)
      return run_market(arguments[1], {arguments.begin() + 2, arguments.end()});
    if (what == "last" && arguments.size() == 3) return run_client(arguments);
    if (what == "follow" && arguments.size() >= 3) return run_client(arguments);
    if (what == "convert" && arguments.size() >= 4) return run_client(arguments);
  } catch (const rpc::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(rpc::to_string(error.kind())).c_str(), error.what());
    return 1;
  }
  std::fputs(
      "usage: embedded_service rates|market|last|follow|convert ...: see the top of embedded_service.cc\n",
      stderr);
  return 2;
}
