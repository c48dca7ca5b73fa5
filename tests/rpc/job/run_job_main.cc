// The program that run_job_program_test.py runs: a job by run_job(), whose first argument selects the body.
#include <weft/rpc/job/run_job.h>
#include <weft/rpc/rpc.h>

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <latch>
#include <stdexcept>
#include <string>

using namespace weft;

namespace {

std::latch body_returned{1};  // of this process

// The agent still replies after the body has returned.
int twice(int x) {
  body_returned.wait();
  return 2 * x;
}
using Twice = rpc::Function<"twice", &twice>;

// The body has an agent: the members have joined.
rpc::Task<void> call_next(rpc::Agent& agent) {
  std::string names;
  for (const rpc::Member& member : rpc::Job(agent).members()) names += " " + member.name;
  std::printf("%s sees%s\n", agent.name().c_str(), names.c_str());
  co_return;
}

// The ranks of all members, and a call that is served after the called member's body has returned.
void gather_and_call(rpc::Job& job) {
  const struct Return {
    ~Return() { body_returned.count_down(); }
  } at_return;
  job.agent().serve<Twice>();
  job.join().get();
  std::size_t sum = 0;
  for (const auto& [name, rank] : job.all_gather(job.rank()).get()) sum += rank;
  if (job.rank() + 1 < job.world_size()) return;
  const int answer = job.agent().peer("worker0").call<Twice>(static_cast<int>(sum)).get();
  std::printf("%zu members, twice the sum of their ranks is %d\n", job.world_size(), answer);
}

// Rank 1 ends without an orderly end; the others wait for it.
void fail(rpc::Job& job, const std::string& how) {
  job.join().get();
  if (job.rank() == 1 && how == "throw") throw std::runtime_error("no shard 1\nsecond line");
  if (how == "exit") std::_Exit(3);
  if (job.rank() == 1) std::raise(SIGKILL);
  job.barrier().get();
}

void wait_for_ever(rpc::Job& job) {
  job.join().get();
  std::printf("rank %zu waits\n", job.rank());
  for (;;) ::pause();
}

}  // namespace

int main(int argc, char** argv) {
  // In the process that starts the others, the first argument may be an option such as -n. That process does
  // not run the body.
  const std::string mode = argc > 1 ? argv[1] : "gather";
  if (mode == "agent") return rpc::run_job(argc, argv, {}, call_next);
  if (mode == "gather") return rpc::run_job(argc, argv, {}, gather_and_call, {.processes = 3});
  if (mode == "wait") return rpc::run_job(argc, argv, {}, wait_for_ever);
  if (mode == "arguments")
    return rpc::run_job(argc, argv, {}, [&](rpc::Job& job) {
      job.join().get();
      std::string text;
      for (int i = 1; i < argc; ++i) text += std::string(" ") + argv[i];
      std::printf("rank %zu of %zu:%s\n", job.rank(), job.world_size(), text.c_str());
    });
  if (mode == "variables")
    return rpc::run_job(argc, argv, {}, [](rpc::Job& job) {
      job.join().get();
      std::printf("%s %s\n", std::getenv("MASTER_PORT"), std::getenv("WEFT_JOB"));
    });
  if (mode == "left")
    return rpc::run_job(argc, argv, {}, [](rpc::Job& job) {
      job.join().get();
      job.serve_until_shutdown();
      std::printf("rank %zu has left\n", job.rank());
    });
  const auto name = [](rpc::MemberOptions& options) {
    options.name = "trainer" + std::to_string(options.rendezvous.rank);
  };
  return rpc::run_job(argc, argv, {}, [&mode](rpc::Job& job) { fail(job, mode); },
                      {.processes = 3, .adjust = name});
}
