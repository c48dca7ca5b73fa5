// JobUrl: where a job meets, and this agent's number in it, in one line of text.
//
//   env://                                                what the environment says
//   tcp://10.0.0.1:29500?rank=1&world_size=4              rank 0 keeps the store, at that address
//   file:///shared/job7?rank=1&world_size=4               a file that all share is the store
//   etcd://10.0.0.1:2379/jobs/7?rank=1&world_size=4       etcd keeps it
//
// Either number may be left to the environment (Agent's from_url()). What follows the first '?' is the
// parameters; nothing is escaped. Pure. Thread-safety: none needed.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <optional>
#include <string>

namespace weft::rpc::detail {

struct JobUrl {
  std::string text;   // all of it, for messages
  std::string store;  // as Rendezvous::store; empty: env://
  std::optional<std::uint64_t> rank, world_size;
};

// Throws invalid_argument, naming the part that is malformed.
WEFT_EXPORT JobUrl job_url(const std::string& text);

inline constexpr std::uint64_t max_agents = 1'000'000;  // of a job

}  // namespace weft::rpc::detail
