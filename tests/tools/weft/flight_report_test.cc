#include "tools/weft/flight_report.h"

#include <gtest/gtest.h>

#include "tests/parallel/collectives/flight/flight_job.h"

namespace weft::tool::flight_report_test {
namespace {

using collectives::FlightState;
using collectives::testing::FlightJob;

// A SyncBatchNorm whose forward runs on rank 0 alone.
TEST(OpenOperations, NameTheOperationAndTheMembersForWhichItWaits) {
  FlightJob job(3);
  job.all_do("barrier()", "train.cc:1");
  job.does(0, "all_gather(float32[5])", "sync_batch_norm.cc:41", FlightState::begun);
  job.last(0).waits_for = {1, 2};
  const auto operations = open_operations(job.dumps(), 1);
  ASSERT_EQ(operations.size(), 1U);
  EXPECT_EQ(text_of(operations),
            "worker0 in group world: #1 all_gather(float32[5]) at sync_batch_norm.cc:41, 98.0 s, waits for "
            "worker1, worker2\n");
  EXPECT_EQ(on_one_line(json_of(operations)),
            R"j([{"member": "worker0", "group": "world", "text": "#1 all_gather(float32[5]) at )j"
            R"j(sync_batch_norm.cc:41", "age": 98.0, "waits_for": ["worker1", "worker2"]}])j");
  EXPECT_TRUE(open_operations(job.dumps(), 99).empty());
}

}  // namespace
}  // namespace weft::tool::flight_report_test
