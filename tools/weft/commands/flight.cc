#include <weft/rpc/core/error.h>

#include <cstdio>

#include "tools/weft/command.h"
#include "tools/weft/flight_report.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace flight_command {
namespace {

struct Options {
  std::string folder;
  bool json = false;
};

collectives::FlightFolder read(const std::string& folder) {
  try {
    return collectives::read_flight_dumps(folder);
  } catch (const rpc::Error& error) {
    throw UsageError(printable(error.what()));
  }
}

Exit run(const Options& options) {
  const collectives::FlightFolder folder = read(options.folder);
  for (const std::string& damaged : folder.unreadable)
    std::fprintf(stderr, "weft: left out %s\n", printable(damaged).c_str());
  if (folder.dumps.empty())
    throw UsageError("no dump of a flight recorder (GROUP.ID.rankR.json) is in " + printable(options.folder));
  const collectives::FlightVerdict verdict = collectives::flight_verdict(folder.dumps);
  if (options.json) {
    std::puts(on_one_line(json_of(verdict)).c_str());
  } else {
    std::fputs(printable(text_of(verdict)).c_str(), stdout);
  }
  return verdict.findings.empty() ? Exit::ok : Exit::failed;
}

}  // namespace
}  // namespace flight_command

Command add_flight(CLI::App& program) {
  using namespace flight_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "flight",
      "Diagnose a job's collectives from the dumps of its flight recorders; exit status 1: a finding");
  app->add_option("DIR", options->folder, "The folder with the dumps of all ranks")->required();
  app->add_flag("--json", options->json, "Print one line of JSON");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
