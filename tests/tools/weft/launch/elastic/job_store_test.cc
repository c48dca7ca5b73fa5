#include "tools/weft/launch/elastic/job_store.h"

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/job/membership/roster.h>

#include <gtest/gtest.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>

#include "tests/support/job.h"
#include "tests/tools/weft/launch/elastic/store_on_loop.h"
#include "tools/weft/errors.h"
#include "tools/weft/launch/elastic/takeover.h"

namespace weft::tool::launch::elastic::job_store_test {
namespace {

using namespace std::chrono_literals;
using rpc::MemberState;
using testing::Trouble;

class StoreOfAJob : public ::testing::Test, protected testing::StoreOnLoop {
 protected:
  void open() {
    job.emplace(loop, OpenedStore{store, [this] { ++closed; }},
                [this](const std::string& name, std::uint64_t incarnation) {
                  told += " " + name + "#" + std::to_string(incarnation);
                });
  }
  void member(const std::string& name, std::uint64_t incarnation, MemberState state) {
    rpc::MemberRecord record;
    record.name = name;
    record.incarnation = incarnation;
    record.state = state;
    store->set(key(name), rpc::to_text(record), {}).get();
  }
  static std::string key(const std::string& name) {
    return std::string(rpc::membership_keys::members) + name;
  }
  MemberState state_of(const std::string& name) {
    return rpc::from_text(name, value(key(name)).value()).state;
  }
  void end(const std::string& name) {
    job->end(name, [this](const JobStore::End& how) {
      ends += " " + std::to_string(how.incarnation) + (how.left ? " left" : "");
    });
  }

  std::optional<JobStore> job;
  std::string told;
  std::string ends;
  int closed = 0;
};

TEST_F(StoreOfAJob, ReportsTheIncarnationsThatHaveJoined) {
  member("worker0", 11, MemberState::joined);
  member("worker1", 12, MemberState::claimed);
  member("worker2", 13, MemberState::left);
  open();
  loop->turn();
  EXPECT_EQ(told, " worker0#11");
  member("worker1", 12, MemberState::joined);
  member("worker2", 14, MemberState::serving);
  loop->turn();
  EXPECT_EQ(told, " worker0#11 worker1#12 worker2#14");
}

TEST_F(StoreOfAJob, AMalformedRecordHidesNoOther) {
  store->set(key("a"), "nonsense", {}).get();
  member("worker0", 11, MemberState::joined);
  open();
  loop->turn();
  EXPECT_EQ(told, " worker0#11");
  pass(1min);
  EXPECT_EQ(told, " worker0#11") << "told once";
}

TEST_F(StoreOfAJob, AWorkerThatHasEndedIsLost) {
  member("worker0", 11, MemberState::joined);
  member("worker1", 12, MemberState::claimed);
  member("worker2", 13, MemberState::left);
  open();
  for (const char* name : {"worker0", "worker1", "worker2", "worker3"}) end(name);
  EXPECT_EQ(ends, "") << "on the loop only";
  loop->turn();
  EXPECT_EQ(ends, " 11 12 13 left 0");
  EXPECT_EQ(state_of("worker0"), MemberState::lost);
  EXPECT_EQ(state_of("worker1"), MemberState::lost);
  EXPECT_EQ(state_of("worker2"), MemberState::left);
  pass(10min);
  EXPECT_FALSE(value(key("worker0"))) << "it is not remembered for ever";
  EXPECT_EQ(ends, " 11 12 13 left 0") << "once";
}

TEST_F(StoreOfAJob, AStoreThatDoesNotReplyDelaysNothing) {
  member("worker0", 11, MemberState::joined);
  open();
  store->trouble = Trouble::unreachable;
  end("worker0");
  loop->turn();
  EXPECT_EQ(ends, " 0");
  store->trouble = Trouble::silent;
  end("worker0");
  pass(1s);
  EXPECT_EQ(ends, " 0");
  pass(1s);
  EXPECT_EQ(ends, " 0 0");
  store->abandon();
  loop->turn();
  EXPECT_EQ(ends, " 0 0") << "once each";
}

TEST_F(StoreOfAJob, ALateReplyDoesNotEndASuccessor) {
  member("worker0", 11, MemberState::joined);
  open();
  store->trouble = Trouble::late;
  end("worker0");
  pass(2s);
  EXPECT_EQ(ends, " 0");
  store->trouble = Trouble::none;
  member("worker0", 12, MemberState::joined);
  store->answer_late();
  loop->turn();
  EXPECT_EQ(state_of("worker0"), MemberState::joined);
}

TEST_F(StoreOfAJob, ADriverWithoutItsLeaseEndsNoWorker) {
  member("worker0", 11, MemberState::joined);
  open();
  const auto end_as = [&](const std::string& driver) {
    job->end(
        "worker0", [this](const JobStore::End& how) { ends += " " + std::to_string(how.incarnation); },
        driver);
    loop->turn();
  };
  end_as("driver1");
  store->set(std::string(takeover_keys::lease), "driver2", {}).get();
  end_as("driver1");
  EXPECT_EQ(ends, " 0 0");
  EXPECT_EQ(state_of("worker0"), MemberState::joined);
  end_as("driver2");
  EXPECT_EQ(ends, " 0 0 11");
  EXPECT_EQ(state_of("worker0"), MemberState::lost);
}

TEST_F(StoreOfAJob, RunsNoCallbackAfterItIsClosed) {
  member("worker0", 11, MemberState::joined);
  open();
  end("worker0");
  job->close();
  EXPECT_EQ(closed, 1);
  pass(1min);
  EXPECT_EQ(told, "");
  EXPECT_EQ(ends, "");
  EXPECT_EQ(store->waiting(), 0U);
  job.reset();
  EXPECT_EQ(closed, 1);
}

TEST(OpenJobStore, AWorkerJoinsByTheStoreThatTheDriverKeeps) {
  const test::TcpJobStore place;
  asio::io_context context;
  const auto work = asio::make_work_guard(context);
  std::string told;
  JobStore job(std::make_shared<rpc::AsioLoop>(context), open_job_store({place.url, {}, false}),
               [&](const std::string& name, std::uint64_t incarnation) {
                 told = name + "#" + std::to_string(incarnation);
               });
  rpc::MemberOptions options{{.name = "worker0", .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1}};
  options.rendezvous = {.store = place.url, .rank = rpc::Rendezvous::no_rank, .fixed_world = false};
  rpc::Job worker(options);
  worker.join().get();
  while (told.empty() && context.run_one_for(1min) != 0) {
  }
  EXPECT_EQ(told, "worker0#" + std::to_string(worker.agent().id().incarnation));
}

TEST(OpenJobStore, OtherHostsNeedCredentials) {
  try {
    open_job_store({"tcp://0.0.0.0:0", {}, false});
    ADD_FAILURE() << "is open to everybody";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "workers on other hosts need --secret FILE, certificates, or --insecure");
  }
}

}  // namespace
}  // namespace weft::tool::launch::elastic::job_store_test
