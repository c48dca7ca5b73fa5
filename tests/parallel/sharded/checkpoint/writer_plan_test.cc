// The slices that each rank writes.
#include <weft/parallel/sharded/checkpoint/writer_plan.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::sharded::writer_plan_test {
namespace {

using Ranks = std::vector<std::vector<SliceRange>>;
using Names = std::vector<std::vector<std::string>>;

SliceRange slice(const std::string& name, std::vector<std::int64_t> sizes, std::int64_t begin,
                 std::int64_t end, const std::string& dtype = "Float") {
  return {name, std::move(sizes), dtype, begin, end};
}

std::string refusal(const Ranks& ranks) {
  const auto error = test::error_of([&] { return plan_writers(ranks); });
  EXPECT_TRUE(error && error->kind() == rpc::ErrorKind::invalid_argument);
  return error ? error->what() : "";
}

TEST(WriterPlan, EachRankWritesItsSlices) {
  EXPECT_EQ(plan_writers({{slice("a", {2, 3}, 0, 4)}, {slice("a", {2, 3}, 4, 6), slice("b", {}, 0, 1)}}),
            (Names{{"a"}, {"a", "b"}}));
  EXPECT_EQ(plan_writers({{slice("a", {4}, 0, 4)}, {slice("a", {4}, 4, 4)}}), (Names{{"a"}, {}}));
}

// A range that several ranks have is written once, by the rank with the least to write. Other ranges are
// written by their rank.
TEST(WriterPlan, CopiesAreWrittenOnce) {
  EXPECT_EQ(plan_writers({{slice("a", {10}, 0, 10), slice("b", {4}, 0, 4), slice("c", {3}, 0, 3)},
                          {slice("b", {4}, 0, 4), slice("c", {3}, 0, 3)},
                          {slice("b", {4}, 0, 4), slice("c", {3}, 0, 3)}}),
            (Names{{"a"}, {"b"}, {"c"}}));
  EXPECT_EQ(plan_writers({{slice("a", {4}, 0, 3)}, {slice("a", {4}, 1, 4)}}), (Names{{"a"}, {"a"}}));
  EXPECT_EQ(plan_writers({{slice("none", {0, 2}, 0, 0)}, {slice("none", {0, 2}, 0, 0)}}),
            (Names{{"none"}, {}}));
}

TEST(WriterPlan, BytesAreCountedAndNotElements) {
  const auto typed = [](const std::string& name, std::int64_t elements, std::int64_t item_size) {
    SliceRange range = slice(name, {elements}, 0, elements);
    range.item_size = item_size;
    return range;
  };
  EXPECT_EQ(plan_writers({{typed("a", 10, 8), typed("c", 1, 1)}, {typed("b", 20, 1), typed("c", 1, 1)}}),
            (Names{{"a"}, {"b", "c"}}));
}

// The values of the ranks may differ.
TEST(WriterPlan, OneRankWritesAllBuffersThatItHas) {
  const auto buffer = [](const std::string& name) {
    SliceRange range = slice(name, {4}, 0, 4);
    range.of_first_rank = true;
    return range;
  };
  const std::vector<SliceRange> both{buffer("b"), buffer("c"), slice("p", {9}, 0, 9), slice("q", {1}, 0, 1)};
  EXPECT_EQ(plan_writers({{slice("p", {9}, 0, 9)}, both, both}), (Names{{"p"}, {"b", "c"}, {"q"}}));
}

// Two ranks have the columns of a matrix, and two other ranks each have one half of these.
TEST(WriterPlan, RunsAreWrittenByTheRanksThatHaveThem) {
  const auto columns = [](std::int64_t first, std::int64_t length, std::int64_t begin, std::int64_t end) {
    SliceRange range = slice("a", {3, 4}, begin, end);
    range.runs = Runs{first, length, 4};
    return range;
  };
  EXPECT_EQ(plan_writers({{columns(0, 2, 0, 6)}, {columns(2, 2, 0, 6)}}), (Names{{"a"}, {"a"}}));
  EXPECT_EQ(plan_writers({{columns(0, 2, 0, 6)}, {columns(2, 2, 0, 6)}, {columns(0, 2, 0, 6)}}),
            (Names{{"a"}, {"a"}, {}}));
  EXPECT_EQ(plan_writers({{columns(0, 3, 0, 5)}, {columns(3, 1, 0, 3)}, {columns(0, 3, 5, 9)}}),
            (Names{{"a"}, {"a"}, {"a"}}));
  EXPECT_EQ(refusal({{columns(0, 2, 0, 6)}, {columns(3, 1, 0, 3)}}),
            "tensor 'a' has 12 elements, and no rank has element 2: expected each element on a rank");
  EXPECT_EQ(refusal({{columns(0, 2, 0, 6)}, {columns(2, 2, 0, 5)}}),
            "tensor 'a' has 12 elements, and no rank has element 11: expected each element on a rank");
  EXPECT_EQ(refusal({{columns(0, 2, 0, 6)}, {columns(2, 2, 0, 7)}}),
            "rank 1: tensor 'a' of sizes [3, 4] has no elements 0 to 7 of these runs, expected a range of "
            "existing elements");
  EXPECT_EQ(refusal({{columns(0, 2, 0, 6)}, {columns(3, 2, 0, 6)}}),
            "rank 1: tensor 'a' of sizes [3, 4] has no elements 0 to 6 of these runs, expected a range of "
            "existing elements");
  EXPECT_EQ(refusal({{columns(0, 2, 0, 6)}, {slice("a", {3, 4}, 0, 12)}}),
            "rank 1: tensor 'a' is Float [3, 4], on rank 0 it is Float [3, 4] with runs at a distance of 4 "
            "elements, expected the same on all ranks");
}

TEST(WriterPlan, AStateThatIsNotWholeIsRefused) {
  EXPECT_EQ(refusal({{slice("a", {6}, 0, 2)}, {slice("a", {6}, 3, 6)}}),
            "tensor 'a' has 6 elements, and no rank has element 2: expected each element on a rank");
  EXPECT_EQ(refusal({{slice("a", {6}, 0, 2)}, {slice("a", {6}, 2, 5)}}),
            "tensor 'a' has 6 elements, and no rank has element 5: expected each element on a rank");
  EXPECT_EQ(refusal({{slice("a", {6}, 2, 2)}}),
            "tensor 'a' has 6 elements, and no rank has element 0: expected each element on a rank");
  EXPECT_EQ(refusal({{slice("a", {6}, 0, 6)}, {slice("a", {2, 3}, 0, 6)}}),
            "rank 1: tensor 'a' is Float [2, 3], on rank 0 it is Float [6], expected the same on all ranks");
  EXPECT_EQ(refusal({{}, {slice("a", {6}, 0, 6)}, {slice("a", {6}, 0, 6, "Half")}}),
            "rank 2: tensor 'a' is Half [6], on rank 1 it is Float [6], expected the same on all ranks");
  EXPECT_EQ(
      refusal({{slice("a", {2, 3}, 4, 7)}}),
      "rank 0: tensor 'a' of sizes [2, 3] has no elements 4 to 7, expected a range of existing elements");
  refusal({{slice("a", {6}, -1, 6)}});
  refusal({{slice("a", {6}, 4, 2)}});
  refusal({{slice("a", {-6}, 0, 0)}});
  refusal({{slice("a", {std::int64_t{1} << 62, 4}, 0, 0)}});
}

}  // namespace
}  // namespace weft::sharded::writer_plan_test
