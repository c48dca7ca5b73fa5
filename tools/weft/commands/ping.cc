#include <weft/rpc/endpoint/dynamic_call.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>

#include "tools/weft/command.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace ping_command {
namespace {

using Times = std::vector<std::chrono::nanoseconds>;

struct Options : AskedAgent {
  std::uint64_t count = 5;
  std::string interval = "200ms";
  bool json = false;
};

std::chrono::nanoseconds mean(const Times& times) {
  std::chrono::nanoseconds sum{0};
  for (const auto& time : times) sum += time;
  return sum / static_cast<std::int64_t>(times.size());
}

PrintedJson json_of(const rpc::AgentId& id, std::chrono::nanoseconds connect, const Times& times) {
  const auto microseconds = [](std::chrono::nanoseconds time) {
    return std::round(static_cast<double>(time.count()) / 100) / 10;
  };
  PrintedJson each = PrintedJson::array();
  for (const auto& time : times) each.push_back(microseconds(time));
  return {{"name", id.name},
          {"incarnation", id.incarnation},
          {"connect_us", microseconds(connect)},
          {"round_trips_us", std::move(each)}};
}

Exit run(Options& options) {
  if (options.count == 0) throw UsageError("--count is 0, expected at least 1");
  const auto interval = parse_duration(options.interval);
  Client& client = options.connect();
  auto began = rpc::Clock::now();
  const rpc::AgentId id = client.peer().ready().get();
  const std::chrono::nanoseconds connect = rpc::Clock::now() - began;
  if (!options.json)
    std::printf("%s at %s (incarnation %016llx), connected in %s\n", printable(id.name).c_str(),
                client.address().c_str(), static_cast<unsigned long long>(id.incarnation),
                text_of(connect).c_str());
  Times times;
  for (std::uint64_t i = 0; i < options.count; ++i) {
    if (i != 0) std::this_thread::sleep_for(interval);
    client.restart();
    began = rpc::Clock::now();
    (void)rpc::call_by_name(client.peer(), rpc::Ping::name, 0, nullptr).get();
    times.push_back(rpc::Clock::now() - began);
    if (!options.json) {
      std::printf("%llu: %s\n", static_cast<unsigned long long>(i + 1), text_of(times.back()).c_str());
      std::fflush(stdout);
    }
  }
  if (options.json) {
    std::puts(on_one_line(json_of(id, connect, times)).c_str());
  } else {
    const auto [least, most] = std::minmax_element(times.begin(), times.end());
    std::printf("least %s, mean %s, most %s\n", text_of(*least).c_str(), text_of(mean(times)).c_str(),
                text_of(*most).c_str());
  }
  return Exit::ok;
}

}  // namespace
}  // namespace ping_command

Command add_ping(CLI::App& program) {
  using namespace ping_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("ping", "Round-trip times to an agent");
  options->add_to(*app);
  app->add_option("-c,--count", options->count, "Number of pings")->type_name("N")->capture_default_str();
  app->add_option("-i,--interval", options->interval, "Interval between two pings")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_flag("--json", options->json, "Print a JSON object, times in microseconds");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
