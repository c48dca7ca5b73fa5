// JobSample: the answers of a job's agents to one round of queries by `weft dash`. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>
#include <weft/rpc/agent/calls_in_flight.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/trace/chrome_trace.h>
#include <weft/rref/listing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::tool {

// The answers of one agent. An agent without RRefs, a tracer or collectives leaves those fields empty.
struct AgentSample {
  std::string address;  // the address at which it was queried
  std::string silent;   // the error, if it did not answer; then the other fields are empty
  rpc::AgentStats stats;
  rpc::CallsInFlight calls;
  std::optional<rref::ReferenceListing> references;
  std::optional<rpc::AgentSpans> spans;  // since the last sample
  std::vector<collectives::FlightDump> groups;
};

struct JobSample {
  std::int64_t time = 0;  // nanoseconds of this process's rpc::Clock; AgentSpans::clock is relative to it
  // The records in the job's store; nullopt: none of the queried agents keeps the store.
  std::optional<std::vector<rpc::MemberRecord>> members;
  std::vector<AgentSample> agents;  // each agent once
};

}  // namespace weft::tool
