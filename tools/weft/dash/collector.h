// Collector: repeatedly queries the agents of a job for the data of `weft dash`.
//
// The Collector queries the given agents. If one of them keeps the store of a job, the Collector also queries
// the members in that store. It queries agents concurrently, each for at most the client's timeout. It
// removes the spans from the tracers of the agents, as `weft trace` does. Thread-safety: used by one thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tools/weft/client.h"
#include "tools/weft/dash/sample.h"

namespace weft::tool {

class Collector {
 public:
  // others: addresses in addition to the client's own. Throws UsageError.
  Collector(Client& client, const std::vector<std::string>& others);

  // Takes a sample. If an agent does not answer, collect() does not throw, and sets AgentSample::silent.
  JobSample collect();

 private:
  struct Known {  // about the agent at an address
    std::uint64_t incarnation = 0;
    std::set<std::string> methods;  // empty: unknown
  };
  void learn_methods(const std::vector<std::string>& addresses, std::map<std::string, std::string>& silent);
  std::optional<std::vector<rpc::MemberRecord>> ask_store();
  std::vector<AgentSample> ask(const std::vector<std::string>& addresses,
                               const std::map<std::string, std::string>& silent);

  Client& client_;
  std::vector<std::string> given_;
  std::vector<rpc::MemberRecord> members_;  // as last read
  std::map<std::string, Known> known_;      // by address
};

}  // namespace weft::tool
