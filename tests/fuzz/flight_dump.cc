// Dumps of flight recorders, as `weft flight` reads them: several dumps, each with a zero byte at its end. A
// dump that was read is written again with equal contents, and gets a verdict.
#include <weft/parallel/collectives/flight/flight_verdict.h>
#include <weft/rpc/core/error.h>

#include "tests/fuzz/target.h"
#include "tests/parallel/collectives/flight/flight_job.h"

namespace weft::fuzz {

using collectives::FlightDump;
using collectives::FlightKind;
using collectives::FlightState;
using collectives::testing::FlightJob;

namespace {

std::vector<std::uint8_t> bytes_of(const std::vector<FlightDump>& dumps) {
  std::vector<std::uint8_t> bytes;
  for (const FlightDump& dump : dumps) {
    const std::string json = json_of(dump);
    bytes.insert(bytes.end(), json.begin(), json.end());
    bytes.push_back(0);
  }
  return bytes;
}

}  // namespace

Corpus seeds() {
  FlightJob job(2), other(2, "other", {1, 0});
  job.all_do("barrier()", "a.cc:1");
  job.does(0, "all_reduce(sum, float32[4])", "a.cc:2", FlightState::moving).waits_for = {1};
  job.does(1, "all_gather(float32[4])", "a.cc:3", FlightState::failed).error = "they differ";
  job.gives(0, "split()", "a.cc:4", FlightState::begun);
  other.does(0, "barrier()", "b.cc:1", FlightState::begun);
  other.message(0, FlightKind::send, 1, "float32[4]", "b.cc:2", FlightState::begun, 7);
  other.message(1, FlightKind::recv, -1, "float32[4]", "b.cc:3", FlightState::begun, 7);
  std::vector<FlightDump> all = job.dumps();
  for (const FlightDump& dump : other.dumps()) all.push_back(dump);
  return {{"one", bytes_of(job.dumps({1}))},
          {"two_groups", bytes_of(all)},
          {"empty", bytes_of(FlightJob(1).dumps())}};
}

}  // namespace weft::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<collectives::FlightDump> dumps;
  while (!rest.empty()) {
    const std::string_view json = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(rest.size(), json.size() + 1));
    try {
      dumps.push_back(collectives::flight_dump_of(json));
    } catch (const rpc::Error& error) {
      if (error.kind() != rpc::ErrorKind::invalid_argument)
        fuzz::fail("refused as " + std::string(error.what()));
      continue;
    }
    const std::string written = json_of(dumps.back());
    if (json_of(collectives::flight_dump_of(written)) != written)
      fuzz::fail("it is not written as it was read");
  }
  const collectives::FlightVerdict verdict = collectives::flight_verdict(dumps);
  if (!verdict.findings.empty() && text_of(verdict).empty()) fuzz::fail("findings, but no text");
  return 0;
}
