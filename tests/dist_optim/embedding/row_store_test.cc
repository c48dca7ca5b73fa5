// RowStore, alone: random operations against a std::map; eviction, epochs, blocks.
#include <weft/dist_optim/embedding/row_store.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace weft::dist_optim::embedding_row_store_test {
namespace {

constexpr std::size_t wide = 3;
using Ids = std::vector<std::int64_t>;

// A simple reference implementation of a row store.
struct Reference {
  struct Row {
    std::vector<float> record;
    std::uint32_t used;
    bool changed;
  };
  RowOptimizer optimizer;
  RowInitializer initializer;
  std::map<std::int64_t, Row> rows;
  std::set<std::int64_t> erased;
  std::uint32_t now = 0;

  Row& get(std::int64_t id) {
    auto [found, fresh] = rows.try_emplace(id);
    if (fresh) {
      auto& record = found->second.record;
      record.resize(wide + optimizer.state_size(wide));
      initializer.fill(id, record.data(), wide);
      optimizer.begin(record.data() + wide, wide);
      found->second.changed = true;
    }
    found->second.used = now;
    return found->second;
  }
  void erase(std::map<std::int64_t, Row>::iterator row) {
    erased.insert(row->first);
    rows.erase(row);
  }
};

RowBlock everything(const RowStore& store, RowStore::Epoch since = 0) {
  return store.take_out(0, store.end(), since, [](std::int64_t) { return true; });
}

std::map<std::int64_t, std::vector<float>> by_id(const RowBlock& block, std::size_t record) {
  std::map<std::int64_t, std::vector<float>> rows;
  for (std::size_t i = 0; i < block.ids.size(); ++i) {
    const auto from = block.records.begin() + static_cast<std::ptrdiff_t>(i * record);
    EXPECT_TRUE(
        rows.emplace(block.ids[i], std::vector<float>(from, from + static_cast<std::ptrdiff_t>(record)))
            .second);
  }
  return rows;
}

class RowStoreRandom : public testing::TestWithParam<RowOptimizer::Kind> {};
INSTANTIATE_TEST_SUITE_P(, RowStoreRandom,
                         testing::Values(RowOptimizer::Kind::sgd, RowOptimizer::Kind::row_wise_adagrad,
                                         RowOptimizer::Kind::adam));

TEST_P(RowStoreRandom, EqualsAMap) {
  std::mt19937_64 random(7);
  RowOptimizer optimizer = RowOptimizer::adam(0.1);
  optimizer.kind = GetParam();
  const RowInitializer initializer{RowInitializer::Kind::uniform, 1, 5};
  RowStore store(wide, optimizer, initializer);
  Reference reference{optimizer, initializer, {}, {}, 0};
  RowStore::Epoch since = store.close_epoch();
  store.remember(since);

  int compared = 0;
  const auto some_ids = [&] {
    Ids ids;
    for (std::size_t n = random() % 40; n != 0; --n)
      ids.push_back(static_cast<std::int64_t>(random() % 9000) * 1024);
    return ids;
  };
  for (int round = 0; round < 3000; ++round) {
    const Ids ids = some_ids();
    std::vector<float> values(ids.size() * wide);
    switch (random() % 8) {
      case 0:
      case 1: {
        store.lookup(ids, values.data(), true);
        for (std::size_t i = 0; i < ids.size(); ++i)
          for (std::size_t c = 0; c < wide; ++c)
            ASSERT_EQ(values[i * wide + c], reference.get(ids[i]).record[c]);
        break;
      }
      case 2: {
        store.lookup(ids, values.data(), false);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          std::vector<float> want(wide);
          initializer.fill(ids[i], want.data(), wide);
          if (const auto found = reference.rows.find(ids[i]); found != reference.rows.end())
            want.assign(found->second.record.begin(), found->second.record.begin() + wide);
          for (std::size_t c = 0; c < wide; ++c) ASSERT_EQ(values[i * wide + c], want[c]);
        }
        break;
      }
      case 3:
      case 4: {
        for (float& value : values) value = static_cast<float>(random() % 1000) / 500 - 1;
        store.update(ids, values.data());
        for (std::size_t i = 0; i < ids.size(); ++i) {
          auto& row = reference.get(ids[i]);
          optimizer.update(row.record.data(), row.record.data() + wide, &values[i * wide], wide);
          row.changed = true;
        }
        store.tick();
        ++reference.now;
        break;
      }
      case 5:
        for (const std::int64_t id : ids) {
          const auto found = reference.rows.find(id);
          EXPECT_EQ(store.erase(id), found != reference.rows.end());
          if (found != reference.rows.end()) reference.erase(found);
        }
        break;
      case 6: {
        if (random() % 8 != 0) break;
        const auto age = static_cast<std::uint32_t>(100 + random() % 400);
        std::size_t evicted = 0;
        for (auto row = reference.rows.begin(); row != reference.rows.end();) {
          const auto here = row++;
          if (reference.now - here->second.used < age) continue;
          reference.erase(here);
          ++evicted;
        }
        EXPECT_EQ(store.evict_older(age), evicted);
        break;
      }
      case 7: {
        if (random() % 8 != 0) break;
        if (!store.remembers(since)) {  // the store no longer knows all erasures
          for (auto& [id, row] : reference.rows) row.changed = false;
          reference.erased.clear();
          since = store.close_epoch();
          store.remember(since);
          break;
        }
        ++compared;
        const auto changes = by_id(everything(store, since), store.record_size());
        const Ids erased = store.erased(since);
        EXPECT_EQ(std::set<std::int64_t>(erased.begin(), erased.end()), reference.erased);
        std::size_t changed = 0;
        for (auto& [id, row] : reference.rows) {
          if (!std::exchange(row.changed, false)) continue;
          ++changed;
          const auto found = changes.find(id);
          ASSERT_NE(found, changes.end());
          // The test compares bits, because some floats hold an integer.
          EXPECT_EQ(std::memcmp(found->second.data(), row.record.data(), row.record.size() * sizeof(float)),
                    0);
        }
        EXPECT_EQ(changes.size(), changed);
        reference.erased.clear();
        since = store.close_epoch();
        store.remember(since);
        break;
      }
    }
    ASSERT_EQ(store.size(), reference.rows.size());
  }
  EXPECT_GT(compared, 10);
  EXPECT_GT(store.size(), 1000u) << "the test reaches tables of a fair size";
  const auto all = by_id(everything(store), store.record_size());
  EXPECT_EQ(all.size(), reference.rows.size());
}

TEST(RowStore, EvictsTheLeastRecentlyUsed) {
  RowStore store(wide, RowOptimizer::sgd(1), {});
  const auto use = [&](std::int64_t from, std::int64_t to) {
    Ids ids(static_cast<std::size_t>(to - from));
    std::iota(ids.begin(), ids.end(), from);
    std::vector<float> values(ids.size() * wide);
    store.lookup(ids, values.data(), true);
    store.tick();
  };
  for (std::int64_t i = 0; i < 10; ++i) use(i * 100, i * 100 + 100);
  use(0, 50);  // used again: now the most recently used row
  EXPECT_EQ(store.evict_to(620), 380u);
  EXPECT_EQ(store.size(), 620u);
  for (std::int64_t id = 0; id < 1000; ++id) {
    if (id < 50 || id >= 500) {
      EXPECT_TRUE(store.contains(id)) << id;
    }
    if (id >= 50 && id < 400) {
      EXPECT_FALSE(store.contains(id)) << id;
    }
  }
  EXPECT_EQ(store.evict_to(620), 0u);
  EXPECT_EQ(store.evict_older(4), 70u + 300u) << "what is left of 400 to 499, and 500 to 799";
  EXPECT_EQ(store.evict_to(0), 250u);
  EXPECT_EQ(store.size(), 0u);
}

TEST(RowStore, BlocksMoveRowsWithTheirAge) {
  RowStore from(wide, RowOptimizer::sgd(0.1), {}), to(wide, RowOptimizer::sgd(0.1), {});
  const Ids ids{1, 2};
  std::vector<float> values(ids.size() * wide);
  from.lookup(ids, values.data(), true);
  from.tick();
  from.tick();
  to.put(everything(from));
  EXPECT_EQ(to.evict_older(3), 0u);
  EXPECT_EQ(to.evict_older(2), 2u);
}

TEST(RowStore, MemoryOfErasedRowsIsReused) {
  RowStore store(16, RowOptimizer::sgd(1), {});
  std::vector<float> values(5000 * 16);
  Ids ids(5000);
  std::size_t bytes = 0;
  for (int round = 0; round < 20; ++round) {
    std::iota(ids.begin(), ids.end(), round * 5000);
    store.lookup(ids, values.data(), true);
    EXPECT_EQ(store.evict_to(0), 5000u);
    if (round == 4) bytes = store.bytes();
  }
  EXPECT_EQ(store.end(), 5000u);
  EXPECT_LT(store.bytes(), bytes * 1.02) << "a segment of the index may still have grown";
}

TEST(RowStore, ForgetsErasuresThatNoSnapshotNeeds) {
  RowStore store(1, RowOptimizer::sgd(1), {});
  const RowStore::Epoch since = store.close_epoch();
  EXPECT_FALSE(store.remembers(since)) << "the store remembers nothing before it is requested";
  store.remember(since);
  EXPECT_TRUE(store.remembers(since));
  const float gradient = 1;
  for (std::int64_t id = 0; id < 1500; ++id) {
    store.update(Ids{id}, &gradient);
    store.erase(id);
  }
  EXPECT_FALSE(store.remembers(since));
  EXPECT_TRUE(store.erased(since).empty());
}

TEST(RowStore, OverheadOfARowIsSmall) {
  constexpr std::size_t rows = 300'000, dimension = 16;
  RowStore store(dimension, RowOptimizer::row_wise_adagrad(0.1), {});
  Ids ids(rows);
  std::iota(ids.begin(), ids.end(), 1'000'000);
  std::vector<float> values(rows * dimension);
  store.lookup(ids, values.data(), true);
  const double overhead = static_cast<double>(store.bytes()) / rows - (dimension + 1) * sizeof(float);
  EXPECT_LT(overhead, 16 + 8.5 + 1);
  EXPECT_GT(overhead, 16 + 6.2);
}

}  // namespace
}  // namespace weft::dist_optim::embedding_row_store_test
