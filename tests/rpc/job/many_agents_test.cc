// One process has as many agents as a large machine has workers. membership_process_test.cc has the same
// number of processes.
#include <sys/resource.h>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::many_agents_test {
namespace {

constexpr std::size_t agents = 64;

// Each pair has up to two connections of two ends.
bool permits_files(::rlim_t files) {
  ::rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= files) return true;
  limit.rlim_cur = std::min(files, limit.rlim_max);
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur >= files;
}

TEST(ManyAgents, SixtyFourAgentsJoinAndCallEachOther) {
  if (!permits_files(2 * agents * agents + 1000)) GTEST_SKIP() << "too few file descriptors are permitted";
  test::Job job(test::job_kind<test::TcpJobStore>("tcp"), agents);
  job.start_all([](AgentOptions& options) {
    options.handler_threads = 1;
    options.connect_timeout = options.handshake_timeout = test::too_long;  // they dial each other at once
    options.same_host = false;  // a connection in shared memory costs several descriptors and a mapping
  });
  std::vector<Future<std::string>> calls;
  for (std::size_t from = 0; from < agents; ++from)
    for (std::size_t to = 0; to < agents; ++to)
      calls.push_back(job[from].peer("worker" + std::to_string(to)).call<&test::Worker::who>());
  for (std::size_t i = 0; i < calls.size(); ++i)
    EXPECT_EQ(test::got(std::move(calls[i])), "worker" + std::to_string(i % agents));
  std::thread host([&] { rpc::Job(job[0]).serve_until_shutdown(); });
  std::vector<Future<void>> left;
  for (std::size_t rank = 1; rank < agents; ++rank) left.push_back(job[rank].leave());
  for (auto& one : left) test::got(std::move(one));
  host.join();
}

}  // namespace
}  // namespace weft::rpc::many_agents_test
