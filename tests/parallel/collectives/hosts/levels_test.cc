#include <weft/parallel/collectives/internal/hosts/levels.h>

#include <algorithm>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace levels_test {

TEST(HostsOfRanks, HaveTheirRanksInOrder) {
  const auto hosts = Hosts::of({"a", "b", "b", "a", "c", "c"}, 3);
  ASSERT_TRUE(hosts);
  EXPECT_EQ(hosts->ranks, (std::vector<std::vector<int>>{{0, 3}, {1, 2}, {4, 5}}));
  EXPECT_EQ(hosts->columns, 2);
  EXPECT_EQ(hosts->host, 0);
  EXPECT_EQ(hosts->index, 1);
  EXPECT_EQ(hosts->in_column(1), 2);
  EXPECT_EQ(hosts->host_of(4), 2);
  EXPECT_EQ(hosts->index_of(5), 1);
}

TEST(HostsOfRanks, DoNotExistForOneHostOrOneRankPerHost) {
  EXPECT_FALSE(Hosts::of({"a", "a"}, 0));
  EXPECT_FALSE(Hosts::of({"a", "b"}, 0)) << "one rank each";
}

TEST(HostsOfRanks, HaveAsManyColumnsAsTheSmallestHasRanks) {
  const auto hosts = Hosts::of({"a", "b", "b", "b", "c", "c"}, 3);
  ASSERT_TRUE(hosts);
  EXPECT_EQ(hosts->columns, 1);
  EXPECT_EQ(hosts->here(), 3);
  EXPECT_FALSE(hosts->in_column());
  EXPECT_TRUE(Hosts::of({"a", "a", "b"}, 2)->in_column());
}

// Every byte of every rank is in one section, and sections follow each other.
TEST(BlocksOfColumns, CoverAllRanksOnce) {
  const std::vector<std::vector<std::string>> cases{
      {"a", "b", "b", "b"}, {"a", "a", "b"},           {"a", "b", "b", "b", "c", "c"},
      {"a", "a", "b", "b"}, {"a", "b", "a", "b", "a"}, {"a", "a", "a", "b", "b", "a", "b", "a"}};
  for (const auto& names : cases) {
    std::vector<std::size_t> sizes;
    for (std::size_t rank = 0; rank < names.size(); ++rank) sizes.push_back(rank * 3 % 5);
    const auto blocks = blocks_of(sizes);
    const auto hosts = Hosts::of(names, 0);
    ASSERT_TRUE(hosts);
    const BlocksByColumn by_column(*hosts, blocks);
    ASSERT_EQ(by_column.columns.size(), static_cast<std::size_t>(hosts->columns));
    std::size_t at = 0;
    for (std::size_t column = 0; column < by_column.columns.size(); ++column) {
      EXPECT_EQ(by_column.columns[column].begin, at);
      ASSERT_EQ(by_column.sections[column].size(), static_cast<std::size_t>(hosts->count()));
      std::size_t section = 0;
      for (const Range part : by_column.sections[column]) {
        EXPECT_EQ(part.begin, section);
        section = part.end;
      }
      EXPECT_EQ(by_column.columns[column].size(), section);
      at = by_column.columns[column].end;
    }
    EXPECT_EQ(at, blocks.back().end);
    std::vector<bool> covered(at);
    for (const auto& [block, place] : by_column.pieces)
      for (std::size_t i = 0; i < block.size(); ++i) {
        EXPECT_FALSE(covered[place + i]);
        covered[place + i] = true;
      }
    EXPECT_EQ(std::count(covered.begin(), covered.end(), false), 0);
  }
}

TEST(BlocksOfColumns, KeepTheOrderOfRanksIfHostsAreContiguous) {
  const auto of = [](const std::vector<std::string>& names) {
    return BlocksByColumn(*Hosts::of(names, 0), even_blocks(20, static_cast<int>(names.size())));
  };
  EXPECT_TRUE(of({"a", "b", "b", "b"}).in_order);
  EXPECT_FALSE(of({"a", "b", "a"}).in_order);
  EXPECT_FALSE(of({"a", "a", "b", "b"}).in_order) << "two columns";
}

TEST(LevelsOfOperations, ExistIfEachByteIsSentBetweenHostsOnce) {
  for (const Operation operation :
       {Operation::all_reduce, Operation::reduce, Operation::broadcast, Operation::all_gather,
        Operation::all_gather_v, Operation::reduce_scatter, Operation::reduce_scatter_v, Operation::barrier})
    EXPECT_TRUE(has_levels(operation)) << static_cast<int>(operation);
  for (const Operation operation :
       {Operation::all_to_all, Operation::all_to_all_v, Operation::gather, Operation::scatter})
    EXPECT_FALSE(has_levels(operation)) << static_cast<int>(operation);
}

// Two hosts of two ranks, on which a rank's block has `block` elements. Without levels, ranks send three
// times as much.
TEST(LevelsOfOperations, SendEachByteBetweenHostsOnce) {
  constexpr int ranks = 4;
  constexpr std::int64_t block = 1 << 16;
  Company company(ranks, Backend::hosts);
  const auto groups = company.groups();
  const auto sent = [&] {
    std::uint64_t bytes = 0;
    for (int rank = 0; rank < ranks; ++rank) bytes += company.agent(rank).counts().bytes_sent;
    return bytes;
  };
  struct Case {
    const char* name;
    int blocks;  // that are sent between hosts
    std::function<rpc::Future<void>(const Group&)> begin;
  };
  const auto whole = [] { return at::ones({ranks * block}); };
  const auto parts = [] {
    const Tensors tensors = of_ranks(ranks, [&](int) { return at::ones({block}); });
    return tensors;
  };
  const Case cases[] = {
      {"all_reduce", 8, [&](const Group& group) { return group.all_reduce(whole()); }},
      {"reduce", 4, [&](const Group& group) { return group.reduce(whole(), 1); }},
      {"broadcast", 4, [&](const Group& group) { return group.broadcast(whole(), 1); }},
      {"all_gather", 4, [&](const Group& group) { return group.all_gather(whole(), at::ones({block})); }},
      {"all_gather_v", 4, [&](const Group& group) { return group.all_gather_v(parts(), at::ones({block})); }},
      {"reduce_scatter", 4,
       [&](const Group& group) { return group.reduce_scatter(at::ones({block}), whole()); }},
      {"reduce_scatter_v", 4,
       [&](const Group& group) { return group.reduce_scatter_v(at::ones({block}), parts()); }}};
  for (const Case& each : cases) {
    const std::uint64_t before = sent();
    together(groups, each.begin);
    const auto blocks = static_cast<double>(sent() - before) / (block * sizeof(float));
    EXPECT_LT(blocks, each.blocks + 0.5) << each.name;
  }
}

}  // namespace levels_test
}  // namespace weft::collectives::testing
