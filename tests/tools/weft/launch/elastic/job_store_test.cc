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
    job.emplace(loop, OpenedStore{store, [this] { ++closed; }}, [this] { ++changes; });
  }
  // What the store states about a worker.
  std::string of(const std::string& name) {
    std::string text = "none";
    if (const rpc::MemberRecord* const record = job->record(name))
      text = std::to_string(record->incarnation) + (record->here()   ? " here"
                                                    : record->gone() ? " gone"
                                                                     : " claimed");
    if (const JobStore::Exclusion* const exclusion = job->exclusion(name))
      text += ", excluded " + std::to_string(exclusion->incarnation) + ": " + exclusion->why;
    return text;
  }
  void exclude(const std::string& name, const std::string& value) {
    store->set(std::string(rpc::membership_keys::excluded) + name, value, {}).get();
    loop->turn();
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
  std::string ends;
  int changes = 0, closed = 0;
};

TEST_F(StoreOfAJob, KnowsTheRecordsOfTheWorkers) {
  member("worker0", 11, MemberState::joined);
  member("worker1", 12, MemberState::claimed);
  member("worker2", 13, MemberState::left);
  open();
  EXPECT_FALSE(job->reported());
  loop->turn();
  EXPECT_TRUE(job->reported());
  EXPECT_EQ(of("worker0"), "11 here");
  EXPECT_EQ(of("worker1"), "12 claimed");
  EXPECT_EQ(of("worker2"), "13 gone");
  EXPECT_EQ(of("worker3"), "none");
  const int before = changes;
  member("worker2", 14, MemberState::serving);
  loop->turn();
  EXPECT_EQ(of("worker2"), "14 here");
  EXPECT_EQ(changes, before + 1);
}

TEST_F(StoreOfAJob, TheEndOfALeaseIsReported) {
  rpc::MemberRecord record;
  record.incarnation = 11;
  record.state = MemberState::joined;
  const auto lease = store->grant(5s).get();
  store->set(key("worker0"), rpc::to_text(record), lease.id).get();
  open();
  loop->turn();
  EXPECT_EQ(of("worker0"), "11 here");
  const int before = changes;
  pass(10s);
  EXPECT_EQ(of("worker0"), "none");
  EXPECT_EQ(changes, before + 1);
}

TEST_F(StoreOfAJob, ARecordThatEndedDuringAnOutageIsNotKept) {
  member("worker0", 11, MemberState::joined);
  member("worker1", 12, MemberState::joined);
  exclude("worker0", "11 why");
  open();
  loop->turn();
  store->trouble = Trouble::unreachable;
  pass(10s);
  store->trouble = Trouble::none;
  store->remove(key("worker0")).get();
  store->remove(std::string(rpc::membership_keys::excluded) + "worker0").get();
  for (int i = 0; i < 2000; ++i) {  // more removals than the store knows
    store->set("other", "", {}).get();
    store->remove("other").get();
  }
  pass(10s);
  EXPECT_EQ(of("worker0"), "none");
  EXPECT_EQ(of("worker1"), "12 here");
}

TEST_F(StoreOfAJob, AMalformedRecordHidesNoOther) {
  store->set(key("a"), "nonsense", {}).get();
  member("worker0", 11, MemberState::joined);
  open();
  loop->turn();
  EXPECT_EQ(of("a"), "none");
  EXPECT_EQ(of("worker0"), "11 here");
  store->set(key("worker0"), "nonsense", {}).get();
  loop->turn();
  EXPECT_EQ(of("worker0"), "11 here") << "nobody can say";
}

TEST_F(StoreOfAJob, KnowsWhichIncarnationTheOthersExclude) {
  member("worker0", 11, MemberState::joined);
  exclude("worker0", "11 no step for 5 s");
  open();
  loop->turn();
  EXPECT_EQ(of("worker0"), "11 here, excluded 11: no step for 5 s");
  const int before = changes;
  exclude("worker0", "18446744073709551615 a\nb");
  EXPECT_EQ(of("worker0"), "11 here, excluded 18446744073709551615: a");
  EXPECT_EQ(changes, before + 1);
  exclude("worker0", "12");
  EXPECT_EQ(of("worker0"), "11 here, excluded 12: no reason is given");
  for (const char* malformed :
       {"", " ", "why", "-1 why", "13x why", "99999999999999999999 why", "\xff\xfe"}) {
    exclude("worker0", malformed);
    EXPECT_EQ(of("worker0"), "11 here, excluded 12: no reason is given") << malformed;
  }
  exclude("worker0", "13 \x1b[2Jwhy");
  EXPECT_EQ(of("worker0").find('\x1b'), std::string::npos) << "it is shown in a terminal";
  store->remove(std::string(rpc::membership_keys::excluded) + "worker0").get();
  loop->turn();
  EXPECT_EQ(of("worker0"), "11 here");
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
  EXPECT_EQ(changes, 0);
  EXPECT_EQ(ends, "");
  EXPECT_EQ(of("worker0"), "none");
  EXPECT_EQ(store->waiting(), 0U);
  job.reset();
  EXPECT_EQ(closed, 1);
}

TEST(OpenJobStore, AWorkerJoinsByTheStoreThatTheDriverKeeps) {
  const test::TcpJobStore place;
  asio::io_context context;
  const auto work = asio::make_work_guard(context);
  JobStore job(std::make_shared<rpc::AsioLoop>(context), open_job_store({place.url, {}, false}), [] {});
  rpc::MemberOptions options{{.name = "worker0", .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1}};
  options.rendezvous = {.store = place.url, .rank = rpc::Rendezvous::no_rank, .fixed_world = false};
  rpc::Job worker(options);
  worker.join().get();
  const auto joined = [&] {
    const rpc::MemberRecord* const record = job.record("worker0");
    return record != nullptr && record->here();
  };
  while (!joined() && context.run_one_for(1min) != 0) {
  }
  ASSERT_TRUE(joined());
  EXPECT_EQ(job.record("worker0")->incarnation, worker.agent().id().incarnation);
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
