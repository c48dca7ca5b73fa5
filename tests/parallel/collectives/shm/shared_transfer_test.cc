#include <weft/parallel/collectives/internal/shm/shared_transfer.h>

#include <weft/parallel/collectives/internal/shm/traffic.h>
#include <weft/parallel/collectives/plan/internal/algorithms.h>

#include <gtest/gtest.h>

namespace weft::collectives::testing {
namespace shared_transfer_test {

// Two ranks, whose runs one thread advances.
class SharedTransfers : public ::testing::Test {
 protected:
  SharedTransfers() {
    const std::size_t bytes = SharedSpace::region_bytes(2, 1 << 16);
    const std::vector regions{SharedRegion::create(bytes), SharedRegion::create(bytes)};
    for (int rank = 0; rank < 2; ++rank) spaces.push_back(std::make_shared<SharedSpace>(regions, rank, true));
  }
  // Returns the runs of both ranks of one collective. It differs between ranks if their roots differ.
  std::vector<std::unique_ptr<SharedTransfer>> run(std::uint64_t sequence, const std::vector<int>& roots) {
    std::vector<std::unique_ptr<SharedTransfer>> runs;
    for (std::size_t rank = 0; rank < 2; ++rank) {
      auto& collective = collectives.emplace_back(std::make_unique<Collective>());
      collective->signature.root = roots[rank];
      runs.push_back(std::make_unique<SharedTransfer>(*spaces[rank], *collective));
      runs.back()->set_sequence(sequence);
    }
    std::vector<SharedTransfer::State> states(2, SharedTransfer::State::in_progress);
    while (states[0] == SharedTransfer::State::in_progress || states[1] == SharedTransfer::State::in_progress)
      for (std::size_t rank = 0; rank < 2; ++rank)
        if (states[rank] == SharedTransfer::State::in_progress)
          states[rank] = runs[rank]->advance(Lockstep::Patience::brief);
    for (const auto state : states)
      EXPECT_EQ(state, roots[0] == roots[1] ? SharedTransfer::State::done : SharedTransfer::State::differs);
    return runs;
  }
  std::vector<std::shared_ptr<SharedSpace>> spaces;
  std::vector<std::unique_ptr<Collective>> collectives;
};

// The queue's thread may be two collectives ahead when the group reads the signatures of the ranks.
TEST_F(SharedTransfers, KeepTheTextsOfADifferenceWhileLaterRunsProceed) {
  const auto first = run(0, {0, 1});
  const auto texts = first[0]->texts();
  ASSERT_EQ(texts.size(), 2U);
  (void)run(1, {0, 0});
  (void)run(2, {7, 8});
  EXPECT_EQ(first[0]->texts(), texts);
  EXPECT_EQ(first[1]->texts(), texts);
}

TEST(Traffic, BlocksAreEven) {
  for (const std::size_t n : {0, 1, 7, 23, 24}) {
    const Layout layout{
        .operation = Operation::all_reduce, .root = -1, .elements = n, .blocks = {}, .from = {}};
    const auto even = even_blocks(n, 5);
    for (int rank = 0; rank < 5; ++rank)
      EXPECT_EQ(Traffic(layout, 0, 5, true).block(rank), even[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace shared_transfer_test
}  // namespace weft::collectives::testing
