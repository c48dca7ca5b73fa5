// Picture: the data of the page of `weft dash`: the samples of a job and their history, as JSON.
//
// No network and no clock: a function of the samples. History is bounded: the spans of the last ten seconds,
// at most 300 points of a series (beyond that, every second point is dropped), 200 series of gauges and 200
// of rates, and the latest 100 members. Thread-safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/weft/dash/sample.h"
#include "tools/weft/json_text.h"

namespace weft::tool {

// Values over time with bounded memory: a series keeps one of `stride` values.
class Series {
 public:
  void add(double time, double value);
  PrintedJson json() const;  // [[time, value], ...]

 private:
  std::vector<std::pair<double, double>> points_;
  std::size_t stride_ = 1, skipped_ = 0;
};

class Picture {
 public:
  void add(const JobSample& sample);  // sample: later than the previous one

  // {"time": seconds since the first sample,
  //  "members": [{"name", "rank" or null, "address", "incarnation": text, "uptime" or null, "state",
  //  "note"}],
  //     state: "alive", "joining", "no answer", "left", "lost"
  //  "rates": [{"agent", "served", "made", "received", "sent", "serving", "waiting"}], per second, and now
  //  "gauges", "charts": [{"name", "lines": [{"agent", "points": [[time, value], ...]}]}],
  //  "calls": [{"text", "age", "depth", "cycle"}],
  //  "references": [{"agent", "objects", "forks", "references", "pending", "more",
  //                  "list": [{"id", "type", "state", "bytes" or null, "users", "age"}]}],
  //  "groups": [{"name", "size", "ranks": [{"rank", "member", "begun", "operations": [{"text", "site",
  //              "state", "age"}]}]}],
  //  "timeline": [{"agent", "dropped", "lanes", "spans": [[lane, begin, end, name, kind, error], ...]}]}
  // Times of spans are seconds before the sample, negative; kind is "made", "served" or "work".
  PrintedJson json() const;

 private:
  using AgentKey = std::pair<std::string, std::uint64_t>;  // a name and an incarnation
  struct Row {
    std::optional<std::size_t> rank;
    std::string address, state, note;
    double uptime = -1;
    bool recorded = false;   // the store has had a record of it
    std::uint64_t seen = 0;  // the number of the last sample that contained it
  };
  struct Lane {
    rpc::AgentSpans spans;
    std::uint64_t dropped = 0;
  };
  using Charts = std::map<std::string, std::map<std::string, Series>>;  // by name, then by agent

  void add_members(const JobSample& sample);
  void add_rates(const rpc::AgentStats& now);
  void add_spans(const AgentSample& agent, std::int64_t time);
  void add_point(Charts& charts, const std::string& name, const std::string& agent, double value);

  std::int64_t first_ = 0;
  std::uint64_t samples_ = 0;
  JobSample last_;
  std::map<AgentKey, Row> members_;
  std::map<std::string, Row> strangers_;  // by address: agents that never answered
  std::map<AgentKey, rpc::AgentStats> stats_;
  std::map<std::string, PrintedJson> rates_;  // by agent
  Charts gauges_, charts_;
  std::map<AgentKey, Lane> spans_;
};

}  // namespace weft::tool
