#include <weft/rpc/core/process_id.h>

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

#include "tests/support/child.h"

namespace weft::rpc {
namespace {

// A process may be reaped between any two reads, also while its entry in /proc is being read.
TEST(ProcessId, OfAConcurrentlyReapedProcessIsReportedAsEnded) {
  for (int i = 0; i < 100; ++i) {
    test::Child child([](int pipe) {
      const ProcessId own = own_process();
      test::say(pipe, std::to_string(own.host) + " " + std::to_string(own.number) + " " +
                          std::to_string(own.started));
    });
    ProcessId process;
    std::istringstream(child.line()) >> process.host >> process.number >> process.started;
    int descriptor = open_process(process);
    EXPECT_GE(descriptor, 0);
    std::thread killer([&] { child.kill(); });
    while (descriptor >= 0) {
      ::close(std::exchange(descriptor, -3));
      EXPECT_NO_THROW(descriptor = open_process(process));
    }
    EXPECT_EQ(descriptor, -1);
    killer.join();
  }
}

}  // namespace
}  // namespace weft::rpc
