// Blacklist: tracks which hosts have failed too often in a row, and until when they get no worker. It has no
// I/O and reads no clock.
//
// A host that fails `failures` times in a row is blacklisted for a cooldown that doubles from one time to the
// next, with jitter, so that hosts that failed together do not return together. After its cooldown a host is
// on probation: its next failure blacklists it again. If a worker was ready for `healthy_after` before it
// failed, the host counts as healthy until then, and the failure is the first of a new row. Hosts are
// remembered while discovery does not report them.
//
// keep_running() (keep_running.h) uses it for the workers of one host: the names are those of workers, and
// `failures` is 1. Thread-safety: none.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/weft/launch/elastic/time_codec.h"

namespace weft::tool::launch::elastic {

struct BlacklistOptions {
  std::size_t failures = 3;  // 1: each failure blacklists the host, as in Horovod
  std::chrono::nanoseconds healthy_after = std::chrono::minutes{1};
  // The first cooldown lasts between `cooldown` and twice that time. Each further cooldown is twice as long,
  // up to max_cooldown. cooldown 0: a blacklisted host never returns.
  std::chrono::nanoseconds cooldown = std::chrono::seconds{10};
  std::chrono::nanoseconds max_cooldown = std::chrono::minutes{10};
};

struct BlacklistEntry {
  std::size_t failures = 0;  // in a row
  std::uint32_t times = 0;   // the number of times that the host was blacklisted in this row
  bool blacklisted = false;
  std::optional<std::chrono::nanoseconds> until;
};
WEFT_CODEC(BlacklistEntry, failures, times, blacklisted, until)

struct BlacklistState {
  std::uint64_t random = 0;
  std::map<std::string, BlacklistEntry> hosts;
};
WEFT_CODEC(BlacklistState, random, hosts)

class Blacklist {
 public:
  using Time = std::chrono::nanoseconds;

  Blacklist(BlacklistOptions options, std::uint64_t seed);

  // A worker on the host has failed, after it was ready for `healthy`. true: the host is blacklisted now.
  bool fail(const std::string& host, Time now, std::chrono::nanoseconds healthy);
  // Ends the cooldowns that are due. Returns the hosts that may be used again.
  std::vector<std::string> release(Time now);

  bool holds(const std::string& host) const;
  // The end of a host's cooldown; nullopt: it never ends.
  std::optional<Time> until(const std::string& host) const;
  std::optional<Time> next_release() const;

  const BlacklistState& state() const { return state_; }
  void restore(BlacklistState state) { state_ = std::move(state); }

 private:
  std::chrono::nanoseconds cooldown_of(std::uint32_t times);
  std::uint64_t draw();

  const BlacklistOptions options_;
  BlacklistState state_;
};

}  // namespace weft::tool::launch::elastic
