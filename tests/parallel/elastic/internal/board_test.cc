#include <weft/parallel/elastic/internal/board.h>

#include <gtest/gtest.h>

#include <functional>
#include <future>

#include "tests/parallel/elastic/training.h"

namespace weft::elastic::board_test {
namespace {

using namespace std::chrono_literals;
using detail::Board;
using test::error_of;

struct Worker {
  Worker(const test::JobStore& store, const std::string& name, std::size_t number, bool has_rank = true)
      : job(options(store, name, number, has_rank)) {
    job.join().get();
    board = Board::open(job, "train");
  }
  ~Worker() { board->close(); }

  static rpc::MemberOptions options(const test::JobStore& store, const std::string& name, std::size_t number,
                                    bool has_rank) {
    rpc::MemberOptions options = testing::worker_options(store, name, number);
    if (!has_rank) options.rendezvous.rank = rpc::Rendezvous::no_rank;
    return options;
  }
  // Waits until the condition holds. Returns the board's view.
  Board::View until(const std::function<bool(const Board::View&)>& holds) const {
    Board::View view = board->view();
    for (; !holds(view); view = board->view())
      if (!board->wait(view.version, rpc::Clock::now() + 1min)) {
        ADD_FAILURE() << "nothing has changed";
        break;
      }
    return view;
  }
  std::uint64_t order_of(const Worker& other) const {
    const auto is_it = [&](const Candidate& candidate) { return candidate.id == other.agent.id(); };
    const auto has_it = [&](const Board::View& view) {
      return std::any_of(view.candidates.begin(), view.candidates.end(), is_it);
    };
    const Board::View view = until(has_it);
    return std::find_if(view.candidates.begin(), view.candidates.end(), is_it)->order;
  }

  rpc::Job job;
  rpc::Agent& agent = job.agent();
  std::shared_ptr<Board> board;
};

class BoardOfAJob : public ::testing::Test {
 protected:
  test::InProcessJobStore store;
  Worker anna{store, "anna", 0};  // keeps the store
};

TEST_F(BoardOfAJob, ReadyWorkersAreVisibleToAll) {
  Worker bert(store, "bert", 3);
  EXPECT_TRUE(anna.board->refresh().ready.empty()) << "it has joined, and is not ready";
  bert.board->announce();
  EXPECT_TRUE(bert.board->view().ready.contains(bert.agent.id())) << "a worker sees itself at once";
  EXPECT_EQ(anna.order_of(bert), 3U);
  EXPECT_FALSE(anna.board->view().is_unavailable(bert.agent.id()));
  bert.board->withdraw();
  EXPECT_TRUE(anna.until([](const auto& view) { return view.ready.empty(); }).candidates.empty());
  EXPECT_TRUE(anna.board->view().is_unavailable(bert.agent.id()));
}

TEST_F(BoardOfAJob, WorkersWithoutARankFollowInTheOrderInWhichTheyWereReady) {
  Worker bert(store, "bert", 1, false), cleo(store, "cleo", 2, false);
  cleo.board->announce();
  bert.board->announce();
  EXPECT_GT(anna.order_of(cleo), 1000U);
  EXPECT_GT(anna.order_of(bert), anna.order_of(cleo));
}

TEST_F(BoardOfAJob, AnotherIncarnationIsNotRemoved) {
  Worker bert(store, "bert", 1);
  bert.board->announce();
  anna.board->remove({"bert", bert.agent.id().incarnation + 1});
  EXPECT_TRUE(anna.board->refresh().ready.contains(bert.agent.id()));
  anna.board->remove(bert.agent.id());
  EXPECT_TRUE(anna.board->refresh().ready.empty());
}

TEST_F(BoardOfAJob, OnlyOneProposalReplacesAGeneration) {
  const Board::View seen = anna.board->refresh();
  EXPECT_EQ(seen.current.number, 0U);
  const Generation first{1, {anna.agent.id()}}, other{1, {}}, second{2, {anna.agent.id()}};
  anna.board->replace(seen, first);
  anna.board->replace(seen, other);
  EXPECT_EQ(anna.board->refresh().current, first);
  anna.board->replace(anna.board->refresh(), second);
  EXPECT_EQ(anna.board->refresh().current, second);
}

TEST_F(BoardOfAJob, AWorkerThatLeavesIsRemoved) {
  Worker bert(store, "bert", 1);
  bert.board->announce();
  anna.order_of(bert);
  bert.board
      ->close();  // leave() waits for the calls in progress, of which one watches the store for half a minute
  bert.job.leave().get();
  const Board::View view = anna.until([](const auto& now) { return !now.gone.empty(); });
  EXPECT_TRUE(view.is_unavailable(bert.agent.id()));
  EXPECT_TRUE(view.candidates.empty());
}

TEST_F(BoardOfAJob, AWaitReturnsAfterAChange) {
  anna.board->refresh();
  const auto version = anna.board->view().version;
  auto waited =
      std::async(std::launch::async, [&] { return anna.board->wait(version, rpc::Clock::now() + 1min); });
  anna.board->poke();
  EXPECT_TRUE(waited.get());
  EXPECT_TRUE(anna.board->wait(version, rpc::Clock::now())) << "it has changed already";
}

TEST_F(BoardOfAJob, AWaitTimesOut) {
  while (anna.board->wait(anna.board->view().version, rpc::Clock::now() + 1ms)) {
  }  // until the board has read all records
}

TEST_F(BoardOfAJob, TheEndOfTheMembershipFailsAWait) {
  Worker bert(store, "bert", 1);
  bert.agent.shut_down();
  EXPECT_TRUE(error_of([&] { return bert.until([](const auto&) { return false; }); }));
  EXPECT_TRUE(error_of([&] { return bert.board->view(); }));
}

}  // namespace
}  // namespace weft::elastic::board_test
