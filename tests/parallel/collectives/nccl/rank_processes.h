// Two ranks on one GPU, in a process each: each is this program again, since CUDA does not survive a fork.
//
//   TEST(Suite, DISABLED_Rank) {            // the program of a rank
//     const auto rank = RankProcess::here();
//     if (!rank) GTEST_SKIP() << "started by another test";
//     rank->run([&] { ... });               // prints "passed", or "failed: " and the reason
//   }
//   TEST(Suite, TwoRanks) {
//     RankProcesses ranks("Suite.DISABLED_Rank");
//     if (!ranks.trouble().empty()) GTEST_SKIP() << ranks.trouble();
//     EXPECT_EQ(ranks.line(0), "passed");
//   }
//
// The process of the second test must not ask CUDA. NCCL permits two ranks on one GPU if they pass for ranks
// of different hosts, or, from 2.30 on, if an environment variable allows it.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/rpc/job/job.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "tests/parallel/collectives/company.h"
#include "tests/parallel/collectives/nccl/gpus.h"
#include "tests/support/child.h"

namespace weft::collectives::testing {

class RankProcesses {
 public:
  // test: the filter of the disabled test.
  explicit RankProcesses(const std::string& test) {
    if (::access("/dev/nvidia0", F_OK) != 0) return;
    for (const char* number : {"0", "1"})
      ranks_.push_back(std::make_unique<test::Child>([&](int out, int in) {
        ::setenv("WEFT_TEST_RANK", number, 1);
        ::setenv("WEFT_TEST_OUT", std::to_string(out).c_str(), 1);
        ::setenv("WEFT_TEST_IN", std::to_string(in).c_str(), 1);
        ::setenv("WEFT_TEST_STORE", store_.url.c_str(), 1);
        ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
        ::setenv("NCCL_HOSTID", (std::string("weft-test-") + number).c_str(), 1);
        ::execl("/proc/self/exe", "rank", ("--gtest_filter=" + test).c_str(),
                "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
        ::_exit(1);
      }));
  }
  std::string trouble() const { return ranks_.empty() ? "no GPU" : ""; }
  std::string line(int rank) { return ranks_[static_cast<std::size_t>(rank)]->line(); }
  void tell(int rank, const std::string& text) { ranks_[static_cast<std::size_t>(rank)]->tell(text); }
  void kill(int rank) { ranks_[static_cast<std::size_t>(rank)]->kill(); }

 private:
  const test::FileJobStore store_;
  std::vector<std::unique_ptr<test::Child>> ranks_;
};

// Prints to the log how long an operation took on this GPU.
inline void note(const char* what, rpc::Clock::time_point begin, const std::string& more = "") {
  std::cout << what << ": " << std::chrono::duration<double>(rpc::Clock::now() - begin).count() << " s "
            << more << std::endl;  // flushed: the process is killed
}

class RankProcess {
 public:
  static std::optional<RankProcess> here() {
    if (std::getenv("WEFT_TEST_RANK") == nullptr) return std::nullopt;
    return RankProcess();
  }

  int rank() const { return rank_; }
  void say(const std::string& text) const { test::say(out_, text); }
  std::string next_line() const { return test::line_of(in_); }

  // f(api), if there is a GPU. Afterwards the process waits until it is killed: the other may need its agent.
  template <class F>
  void run(F f) const {
    try {
      std::string why = "no GPU";
      const auto api = nccl::testing::gpus(why) >= 1 ? nccl::testing::library(why) : nullptr;
      if (api == nullptr) throw std::runtime_error(why);
      f(api);
      say(::testing::Test::HasFailure() ? "failed: see above" : "passed");
    } catch (const std::exception& error) {
      say(std::string("failed: ") + error.what());
    }
    (void)next_line();
  }
  // Runs f(group, agent) on both ranks.
  template <class F>
  void run_in_group(const GroupOptions& options, rpc::Layers below, F f) const {
    run([&](const std::shared_ptr<const nccl::Api>& api) {
      nccl::DevicesOptions devices;
      devices.load = [api] { return api; };
      auto agent = test::make_member(options_in_process(std::getenv("WEFT_TEST_STORE"), rank_, 2),
                                     company_layers(std::move(devices), std::move(below)));
      rpc::Job(*agent).wait_for(2).get();
      at::set_num_threads(1);  // the ranks share the cores
      f(Group::create(*agent, options).get(), *agent);
      const auto begin = rpc::Clock::now();
      agent.reset();
      note("the agent ended", begin);
    });
  }

 private:
  RankProcess() = default;
  const int rank_ = std::atoi(std::getenv("WEFT_TEST_RANK"));
  const int out_ = std::atoi(std::getenv("WEFT_TEST_OUT")), in_ = std::atoi(std::getenv("WEFT_TEST_IN"));
};

}  // namespace weft::collectives::testing
