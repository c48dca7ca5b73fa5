#include "bench/harness/bench.h"

#include "bench/harness/chart.h"
#include "bench/harness/options.h"
#include "bench/harness/progress.h"
#include "bench/harness/schedule.h"
#include "bench/harness/summary.h"
#include "bench/harness/table.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

namespace weft::bench {

int run_bench(int argc, char** argv, Bench bench) {
  int status = 0;
  const auto options = parse_options(argc, argv, bench, status);
  if (!options) return status;
  std::ofstream json;
  if (!options->json.empty()) {
    json.open(options->json);
    if (!json) {
      std::fprintf(stderr, "cannot write %s\n", options->json.c_str());
      return 2;
    }
  }

  std::vector<std::size_t> contenders;
  for (const Case& one : bench.cases) contenders.push_back(one.contenders.size());
  const auto turns = interleave(contenders, options->rounds);
  Progress progress(turns.size());
  std::vector<Row> rows;
  for (const Turn& turn : turns) {
    const Case& one = bench.cases[turn.case_index];
    const Contender& contender = one.contenders[turn.contender_index];
    progress.step("round " + std::to_string(turn.round) + ": " + one.name + ", " + contender.peer);
    Outcome outcome = contender.measure(options->setting);
    if (!outcome.error.empty()) progress.remark(one.name + ", " + contender.peer + ": " + outcome.error);
    outcome.notes.insert(contender.notes.begin(), contender.notes.end());
    rows.push_back({bench.name, one.name, contender.peer, turn.round, options->setting.pins.text(),
                    std::move(outcome.threads), std::move(outcome.notes), std::move(outcome.figures),
                    std::move(outcome.error)});
    if (json.is_open())
      json << to_json(rows.back()) << std::endl;  // flushed, so that an interrupted run keeps its rows
  }
  progress.finish();

  bool written = !json.is_open() || json.good();
  const std::vector<Entry> entries = summarise(rows, bench.subject);
  std::fputs(table(entries, bench.subject).c_str(), stdout);
  if (!options->svg.empty()) {
    std::ofstream svg(options->svg);
    svg << chart(entries, bench.subject, "bench " + bench.name) << std::flush;
    if (!svg) std::fprintf(stderr, "cannot write %s\n", options->svg.c_str());
    written = written && svg.good();
  }
  const bool subject_failed = std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
    return entry.peer == bench.subject && entry.measured != entry.rounds;
  });
  return subject_failed || !written ? 1 : 0;
}

}  // namespace weft::bench
