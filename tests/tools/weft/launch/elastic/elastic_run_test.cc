#include "tools/weft/launch/elastic/elastic_run.h"

#include <gtest/gtest.h>

namespace weft::tool::launch::elastic::elastic_run_test {
namespace {

TEST(ElasticRun, AWorkerGetsItsEnvironment) {
  ElasticJob job;
  job.id = "job7";
  job.store = "tcp://10.0.0.1:7000";
  job.driver.min_workers = 2;
  job.driver.max_workers = 8;
  job.credentials.secret_file = "/secret";
  job.detection = "0.5";
  const WorkerPlan plan = plan_worker(job, StartWorker{12, "b", 1, 4, 5});
  EXPECT_EQ(plan.title(), "rank 5");
  EXPECT_EQ(plan.name, "worker5");
  EXPECT_EQ(plan.local_rank, 1U);
  const std::map<std::string, std::string> told{{"RANK", ""},
                                                {"WORLD_SIZE", ""},
                                                {"GROUP_RANK", ""},
                                                {"GROUP_WORLD_SIZE", ""},
                                                {"ROLE_NAME", ""},
                                                {"ROLE_RANK", ""},
                                                {"ROLE_WORLD_SIZE", ""},
                                                {"MASTER_ADDR", ""},
                                                {"MASTER_PORT", ""},
                                                {"WEFT_ROLE", ""},
                                                {"WEFT_ROLE_SIZE", ""},
                                                {"WEFT_ELASTIC_WORLD", "1"},
                                                {"WEFT_STORE", "tcp://10.0.0.1:7000"},
                                                {"WEFT_NAME", "worker5"},
                                                {"WEFT_ROLE_RANK", "5"},
                                                {"WEFT_MIN_WORKERS", "2"},
                                                {"WEFT_MAX_WORKERS", "8"},
                                                {"WEFT_SECRET", "/secret"},
                                                {"WEFT_DETECTION", "0.5"},
                                                {"LOCAL_RANK", "1"},
                                                {"LOCAL_WORLD_SIZE", "4"},
                                                {"TORCHELASTIC_RUN_ID", "job7"}};
  EXPECT_EQ(plan.environment, told);
}

// What the store states about a worker, and the events that follow, as "ready", "lost", or the reason of the
// exclusion.
class NewsOfAWorker : public ::testing::Test {
 protected:
  void record(std::uint64_t incarnation, rpc::MemberState state) {
    record_.emplace();
    record_->incarnation = incarnation;
    record_->state = state;
  }
  void remove() { record_.reset(); }
  void exclude(std::uint64_t incarnation) { exclusion_ = {incarnation, "why"}; }
  std::string news() {
    std::string text;
    while (const auto event =
               news_of(7, known, record_ ? &*record_ : nullptr, exclusion_ ? &*exclusion_ : nullptr)) {
      if (const auto* ready = std::get_if<WorkerReady>(&*event); ready != nullptr && ready->worker == 7)
        text += "ready ";
      if (const auto* lost = std::get_if<WorkerLost>(&*event); lost != nullptr && lost->worker == 7)
        text += "lost ";
      if (const auto* out = std::get_if<WorkerExcluded>(&*event); out != nullptr && out->worker == 7)
        text += out->why + " ";
    }
    return text;
  }
  std::string news_of_record(std::uint64_t incarnation, rpc::MemberState state) {
    record(incarnation, state);
    return news();
  }

  Membership known{11};

 private:
  std::optional<rpc::MemberRecord> record_;
  std::optional<JobStore::Exclusion> exclusion_;
};
using rpc::MemberState;

TEST_F(NewsOfAWorker, ItIsReadyWhenItHasJoined) {
  EXPECT_EQ(news(), "") << "it has not registered";
  EXPECT_EQ(news_of_record(12, MemberState::claimed), "");
  EXPECT_EQ(news_of_record(12, MemberState::joined), "ready ");
  EXPECT_EQ(news_of_record(12, MemberState::serving), "");
}

TEST_F(NewsOfAWorker, TheRecordOfItsPredecessorIsIgnored) {
  EXPECT_EQ(news_of_record(11, MemberState::joined), "");
  EXPECT_EQ(news_of_record(11, MemberState::lost), "");
  remove();
  EXPECT_EQ(news(), "");
  exclude(11);
  EXPECT_EQ(news_of_record(12, MemberState::joined), "ready ");
}

TEST_F(NewsOfAWorker, ItIsLostOnceWhenItsRecordIsRemoved) {
  EXPECT_EQ(news_of_record(12, MemberState::joined), "ready ");
  remove();
  EXPECT_EQ(news(), "lost ");
  exclude(12);
  EXPECT_EQ(news(), "");
}

TEST_F(NewsOfAWorker, ItIsLostIfItsRecordSaysSo) {
  EXPECT_EQ(news_of_record(12, MemberState::joined), "ready ");
  EXPECT_EQ(news_of_record(12, MemberState::lost), "lost ");
  remove();
  EXPECT_EQ(news(), "");
}

TEST_F(NewsOfAWorker, AWorkerThatHasLeftIsNotLost) {
  EXPECT_EQ(news_of_record(12, MemberState::serving), "ready ");
  EXPECT_EQ(news_of_record(12, MemberState::left), "");
  remove();  // some minutes later
  EXPECT_EQ(news(), "");
}

TEST_F(NewsOfAWorker, AProcessThatJoinsAgainIsNotLost) {
  EXPECT_EQ(news_of_record(12, MemberState::joined), "ready ");
  EXPECT_EQ(news_of_record(13, MemberState::claimed), "");
  EXPECT_EQ(news_of_record(13, MemberState::joined), "ready ");
  remove();
  EXPECT_EQ(news(), "lost ");
}

TEST_F(NewsOfAWorker, OnlyItsOwnIncarnationIsExcluded) {
  exclude(12);
  EXPECT_EQ(news(), "") << "it has not joined";
  EXPECT_EQ(news_of_record(12, MemberState::joined), "ready why ") << "the exclusion was reported first";
  EXPECT_EQ(news(), "");
  known = {12};
  EXPECT_EQ(news_of_record(13, MemberState::joined), "ready ") << "the key remains";
  exclude(13);
  EXPECT_EQ(news(), "why ");
}

TEST_F(NewsOfAWorker, AWorkerOfAnotherDriverIsLostIfItHasNoRecord) {
  known = {0, 0};
  EXPECT_EQ(news(), "lost ");
  known = {0, 0};
  EXPECT_EQ(news_of_record(12, MemberState::lost), "lost ");
  known = {0, 0};
  EXPECT_EQ(news_of_record(12, MemberState::left), "");
  known = {0, 0};
  EXPECT_EQ(news_of_record(12, MemberState::joined), "ready ");
}

}  // namespace
}  // namespace weft::tool::launch::elastic::elastic_run_test
