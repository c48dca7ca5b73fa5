// FlightJob: dumps of ranks as a program would have written them, for tests. Times are seconds since the
// start of the job. The operations of a rank start one second after each other.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace weft::collectives::testing {

constexpr std::int64_t second = 1'000'000'000;

class FlightJob {
 public:
  // Members are all workers where none are named.
  explicit FlightJob(int ranks, std::string name = "world", std::vector<int> workers = {}) {
    for (int rank = 0; rank < ranks; ++rank) {
      const int worker = workers.empty() ? rank : workers[static_cast<std::size_t>(rank)];
      members_.push_back("worker" + std::to_string(worker));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      FlightDump dump;
      dump.origin = 0x1111'2222'3333'4444;
      dump.number = 1;
      dump.group = name;
      dump.rank = rank;
      dump.members = members_;
      dump.host = "host";
      dump.pid = 100 + rank;
      dump.records.taken = 100 * second;
      dumps_.push_back(std::move(dump));
    }
  }

  FlightDump& dump(int rank) { return dumps_[static_cast<std::size_t>(rank)]; }
  FlightEntry& last(int rank) { return dump(rank).records.entries.back(); }

  // Adds the next collective of a rank, or of all ranks. It is done unless `state` says otherwise.
  FlightEntry& does(int rank, const std::string& text, const std::string& site,
                    FlightState state = FlightState::done) {
    FlightEntry entry;
    entry.sequence = dump(rank).records.begun++;
    entry.text = text;
    return add(rank, std::move(entry), site, state);
  }
  void all_do(const std::string& text, const std::string& site, FlightState state = FlightState::done,
              const std::vector<int>& but = {}) {
    for (int rank = 0; rank < static_cast<int>(dumps_.size()); ++rank)
      if (std::find(but.begin(), but.end(), rank) == but.end()) does(rank, text, site, state);
  }
  FlightEntry& gives(int rank, const std::string& text, const std::string& site, FlightState state) {
    FlightEntry entry;
    entry.kind = FlightKind::values;
    entry.sequence = dump(rank).records.begun_values++;
    entry.text = text;
    return add(rank, std::move(entry), site, state);
  }
  FlightEntry& message(int rank, FlightKind kind, int peer, const std::string& type, const std::string& site,
                       FlightState state, std::uint64_t tag = 0) {
    FlightEntry entry;
    entry.kind = kind;
    entry.peer = peer;
    entry.tag = tag;
    entry.text = type;
    return add(rank, std::move(entry), site, state);
  }

  // The dumps that the job has left.
  std::vector<FlightDump> dumps(const std::vector<int>& without = {}) const {
    std::vector<FlightDump> dumps;
    for (const FlightDump& dump : dumps_)
      if (std::find(without.begin(), without.end(), dump.rank) == without.end()) dumps.push_back(dump);
    return dumps;
  }

 private:
  FlightEntry& add(int rank, FlightEntry entry, const std::string& site, FlightState state) {
    auto& entries = dump(rank).records.entries;
    entry.number = entries.size();
    entry.site = site;
    entry.state = state;
    entry.begun = static_cast<std::int64_t>(entries.size() + 1) * second;
    if (state != FlightState::begun) entry.moved = entry.begun + second / 10;
    if (state == FlightState::done || state == FlightState::failed) entry.ended = entry.begun + second / 5;
    entries.push_back(std::move(entry));
    return entries.back();
  }

  std::vector<std::string> members_;
  std::vector<FlightDump> dumps_;
};

}  // namespace weft::collectives::testing
