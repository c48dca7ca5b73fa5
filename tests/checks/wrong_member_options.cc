// An agent that is constructed from the options of a member of a job.
// expect: weft: an Agent of MemberOptions would have no job: construct a Job
#include <weft/rpc/job/job.h>

void start(const weft::rpc::MemberOptions& options, const weft::rpc::Layers& layers) {
  const weft::rpc::Agent agent(options, layers);  // mistake
  const weft::rpc::Job job(options, layers);
}
