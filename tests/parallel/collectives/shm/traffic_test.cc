#include <weft/parallel/collectives/internal/shm/traffic.h>

#include <weft/parallel/collectives/plan/internal/algorithms.h>

#include <gtest/gtest.h>

namespace weft::collectives::testing {
namespace traffic_test {

// One layout of each operation for this number of ranks. all_to_all_v has one layout per rank.
std::vector<Layout> layouts_of(Operation operation, int ranks) {
  Layout layout{.operation = operation, .root = -1, .elements = 0, .blocks = {}, .from = {}};
  switch (operation) {
    case Operation::reduce:
    case Operation::broadcast:
    case Operation::gather:
    case Operation::scatter:
      layout.root = ranks - 1;
      break;
    default:
      break;
  }
  layout.elements = 23;
  if (operation != Operation::all_reduce && operation != Operation::reduce &&
      operation != Operation::broadcast && operation != Operation::barrier) {
    layout.elements = 0;
    layout.blocks = layout.from = even_blocks(operation == Operation::all_to_all ? 30 : 23, ranks);
  }
  std::vector<Layout> layouts(static_cast<std::size_t>(ranks), layout);
  if (operation != Operation::all_to_all_v) return layouts;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::size_t> to, from;
    for (int other = 0; other < ranks; ++other) {
      to.push_back(static_cast<std::size_t>((rank + 2 * other) % 4));
      from.push_back(static_cast<std::size_t>((other + 2 * rank) % 4));
    }
    layouts[static_cast<std::size_t>(rank)].blocks = blocks_of(to);
    layouts[static_cast<std::size_t>(rank)].from = blocks_of(from);
  }
  return layouts;
}

TEST(Traffic, SentAndReceivedRangesMatch) {
  for (int number = 0; number <= static_cast<int>(Operation::barrier); ++number)
    for (const int ranks : {2, 3, 5})
      for (const bool in_blocks : {false, true}) {
        const auto operation = static_cast<Operation>(number);
        if (in_blocks && operation != Operation::all_reduce && operation != Operation::reduce) continue;
        SCOPED_TRACE(::testing::Message() << name_of(operation) << " among " << ranks << " " << in_blocks);
        const auto layouts = layouts_of(operation, ranks);
        std::vector<Traffic> traffic;
        for (int rank = 0; rank < ranks; ++rank)
          traffic.emplace_back(layouts[static_cast<std::size_t>(rank)], rank, ranks, in_blocks);
        std::size_t taken = 0;
        for (int taker = 0; taker < ranks; ++taker) {
          std::size_t end = 0;
          for (int giver = 0; giver < ranks; ++giver) {
            const Traffic &from = traffic[static_cast<std::size_t>(giver)],
                          &to = traffic[static_cast<std::size_t>(taker)];
            const Range given = from.gives(taker), wanted = to.takes(giver);
            EXPECT_EQ(given.size(), wanted.size()) << giver << " to " << taker;
            EXPECT_LE(given.size(), from.max_given());
            taken += wanted.size();
            if (to.reduces()) {
              EXPECT_EQ(wanted, to.takes(taker)) << "of all ranks the same";
            } else if (!wanted.empty()) {
              EXPECT_EQ(wanted.begin, end) << "one after the other";
              end = wanted.end;
            }
            if (from.gives_all_the_same()) {
              EXPECT_TRUE(given.empty() || given.begin == 0) << giver << " to " << taker;
            }
          }
        }
        EXPECT_EQ(taken != 0, operation != Operation::barrier);
      }
}

TEST(Traffic, BlocksAreEvenByDefault) {
  for (const std::size_t n : {0, 1, 7, 23, 24}) {
    const Layout layout{
        .operation = Operation::all_reduce, .root = -1, .elements = n, .blocks = {}, .from = {}};
    const auto even = even_blocks(n, 5);
    for (int rank = 0; rank < 5; ++rank)
      EXPECT_EQ(Traffic(layout, 0, 5, true).block(rank), even[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace traffic_test
}  // namespace weft::collectives::testing
