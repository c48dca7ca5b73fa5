#include "bench/harness/options.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>

namespace weft::bench {
namespace {

// Whether a name in `asked` equals the name or a leading part of it: "bulk" selects "bulk/1MiB/tcp" and all
// other cases of "bulk".
bool chosen(const std::string& name, const std::vector<std::string>& asked) {
  return asked.empty() || std::any_of(asked.begin(), asked.end(), [&](const std::string& one) {
           return name == one || name.starts_with(one + "/");
         });
}

void list(const Bench& bench) {
  for (const Case& one : bench.cases) {
    std::printf("%s:", one.name.c_str());
    for (const Contender& contender : one.contenders) std::printf(" %s", contender.peer.c_str());
    std::printf("\n");
  }
}

// Each given name must select something. Otherwise a misspelt name would silently measure less.
void check_names(const std::vector<std::string>& asked, const std::vector<std::string>& names,
                 const char* option) {
  for (const std::string& one : asked)
    if (std::none_of(names.begin(), names.end(),
                     [&](const std::string& name) { return chosen(name, {one}); }))
      throw CLI::ValidationError(option, "unknown '" + one + "': see --list");
}

void choose(Bench& bench, const std::vector<std::string>& cases, const std::vector<std::string>& peers) {
  std::vector<std::string> case_names, peer_names;
  for (const Case& one : bench.cases) {
    case_names.push_back(one.name);
    for (const Contender& contender : one.contenders) peer_names.push_back(contender.peer);
  }
  check_names(cases, case_names, "--cases");
  check_names(peers, peer_names, "--peers");
  std::erase_if(bench.cases, [&](const Case& one) { return !chosen(one.name, cases); });
  for (Case& one : bench.cases)
    std::erase_if(one.contenders, [&](const Contender& contender) {
      return !peers.empty() && std::find(peers.begin(), peers.end(), contender.peer) == peers.end();
    });
  std::erase_if(bench.cases, [](const Case& one) { return one.contenders.empty(); });
}

}  // namespace

std::optional<Options> parse_options(int argc, char** argv, Bench& bench, int& status) {
  Options options;
  std::vector<std::string> cases, peers;
  std::string pins;
  double seconds = 0.5;
  bool quick = false, only_list = false;
  CLI::App app("Measures weft and its peers: " + bench.name);
  auto* rounds = app.add_option("--rounds", options.rounds, "Rounds; ratios are computed within a round")
                     ->check(CLI::PositiveNumber)
                     ->capture_default_str();
  app.add_option("--cases", cases, "Only these: names or prefixes of names, separated by commas")
      ->delimiter(',');
  app.add_option("--peers", peers, "Only these, separated by commas")->delimiter(',');
  auto* duration = app.add_option("--seconds", seconds, "Length of one measurement, after its warm-up")
                       ->check(CLI::PositiveNumber)
                       ->capture_default_str();
  app.add_option("--pins", pins, "Cores of each process: 0/1, 0-3/4-7, none. By default one core each");
  app.add_option("--json", options.json, "Write one JSON object for each measurement into this file");
  app.add_option("--svg", options.svg, "Draw the comparison into this file");
  app.add_flag("--quick", quick, "2 rounds of 0.1 s, to see that everything runs");
  app.add_flag("--list", only_list, "List the cases and peers");
  try {
    app.parse(argc, argv);
    choose(bench, cases, peers);
    options.setting.pins =
        pins.empty() ? Pins::one_each(allowed_cores(), bench.processes) : Pins::parse(pins);
  } catch (const CLI::ParseError& error) {
    status = app.exit(error) == 0 ? 0 : 2;
    return std::nullopt;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "--pins: %s\n", error.what());
    status = 2;
    return std::nullopt;
  }
  if (only_list) {
    list(bench);
    status = 0;
    return std::nullopt;
  }
  if (quick && rounds->count() == 0) options.rounds = 2;
  if (quick && duration->count() == 0) seconds = 0.1;
  const std::chrono::duration<double> wanted(seconds);
  options.setting.budget.duration = std::chrono::duration_cast<std::chrono::nanoseconds>(wanted);
  options.setting.budget.warm_up = std::chrono::duration_cast<std::chrono::nanoseconds>(wanted * 0.3);
  return options;
}

}  // namespace weft::bench
