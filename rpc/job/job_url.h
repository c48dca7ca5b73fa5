// JobUrl: the address of a job's store, and this agent's rank and the world size, in one line of text.
//
//   env://                                                all from the environment
//   tcp://10.0.0.1:29500?rank=1&world_size=4              rank 0 keeps the store, at that address
//   file:///shared/job7?rank=1&world_size=4               the store is a file that all agents share
//   etcd://10.0.0.1:2379/jobs/7?rank=1&world_size=4       the store is in etcd
//
// A missing rank or world_size comes from the environment (from_url()). The parameters follow the first '?',
// without escapes. No I/O. Thread-safety: functions without state.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::rpc::detail {

struct JobUrl {
  std::string text;   // the whole URL, for messages
  std::string store;  // as Rendezvous::store; empty for env://
  std::optional<std::uint64_t> rank, world_size;
};

// Throws invalid_argument if the URL is malformed (the text names the part).
WEFT_EXPORT JobUrl job_url(const std::string& text);

// The number in the text `value`. Throws invalid_argument with the name if it is not within the limits.
std::uint64_t number_between(const std::string& name, std::string_view value, std::uint64_t min,
                             std::uint64_t max);

inline constexpr std::uint64_t max_agents = 1'000'000;  // of a job

}  // namespace weft::rpc::detail
