// Checkpoints of an embedding: full and incremental, with another number of owners, incomplete and damaged.
#include <weft/dist_optim/embedding/sharded_embedding.h>

#include <fstream>

#include "tests/dist_optim/embedding/support.h"
#include "tests/support/held_calls.h"

namespace weft::dist_optim::embedding_test {
namespace {

using Files = std::vector<CheckpointFile>;

TEST(EmbeddingCheckpointFile, NamesAreReadBack) {
  const CheckpointFile file{12, 7, 3, 5};
  EXPECT_EQ(file.name(), "embedding-12-7-3-of-5.rows");
  EXPECT_EQ(CheckpointFile::parse(file.name()), file);
  for (const char* name :
       {"embedding-12-7-3-of-5.rows.part", "embedding-12-7-5-of-5.rows", "embedding-7-7-3-of-5.rows",
        "embedding-012-7-3-of-5.rows", "embedding-12-7-3-of-5", "", "rows"})
    EXPECT_FALSE(CheckpointFile::parse(name)) << name;
}

TEST(EmbeddingCheckpointFile, TheNewestCompleteChainIsTaken) {
  EXPECT_FALSE(newest_checkpoint({}));
  Files files{{1, 0, 0, 2}, {1, 0, 1, 2}, {2, 1, 0, 2}, {2, 1, 1, 2}, {3, 2, 0, 2}};
  auto found = newest_checkpoint(files);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->sequence, 2u) << "of the third, a file is missing";
  EXPECT_EQ(found->chains, (std::vector<Files>{{{1, 0, 0, 2}, {2, 1, 0, 2}}, {{1, 0, 1, 2}, {2, 1, 1, 2}}}));
  // One owner more, and chains of checkpoints that start at different times.
  files.insert(files.end(), {{4, 3, 0, 3}, {4, 0, 1, 3}, {4, 0, 2, 3}, {4, 0, 2, 3}});
  found = newest_checkpoint(files);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->sequence, 4u);
  EXPECT_EQ(found->chains[0].size(), 4u);
  EXPECT_EQ(found->chains[1], (Files{{4, 0, 1, 3}}));
  EXPECT_FALSE(newest_checkpoint({{5, 0, 0, 2}, {5, 0, 1, 3}})) << "two that do not belong together";
  // The full checkpoint of the increments is missing.
  std::erase(files, CheckpointFile{1, 0, 0, 2});
  EXPECT_FALSE(newest_checkpoint(files));
}

RowStore some_rows() {
  RowStore store(3, RowOptimizer::adam(0.1), {});
  std::vector<std::int64_t> ids(500);
  std::iota(ids.begin(), ids.end(), -250);
  const std::vector<float> gradients(ids.size() * 3, 0.25f);
  store.update(ids, gradients.data());
  return store;
}

TEST(EmbeddingCheckpointFile, RowsAreReadBack) {
  TemporaryDirectory directory;
  RowStore store = some_rows();
  const CheckpointFile full{1, 0, 0, 1}, changes{2, 1, 0, 1};
  RowStore::Epoch epoch = store.close_epoch();
  EXPECT_EQ(write_checkpoint(directory.path, full, store, 0), 500u);
  store.remember(epoch);
  EXPECT_EQ(test::kind_of([&] { return write_checkpoint(directory.path, full, store, 0); }),
            rpc::ErrorKind::already_exists);
  store.erase(-250);
  store.erase(7);
  const std::vector<std::int64_t> touched{7, 8};
  const std::vector<float> gradients(6, 1.0f);
  store.update(touched, gradients.data());
  EXPECT_EQ(write_checkpoint(directory.path, changes, store, epoch), 2u);
  std::ofstream(directory.path + "/" + CheckpointFile{3, 2, 0, 1}.name() + ".part") << "begun";
  EXPECT_EQ(checkpoint_files(directory.path), (Files{full, changes}));
  EXPECT_TRUE(checkpoint_files(directory.path + "/none").empty());

  RowStore read(3, RowOptimizer::adam(0.1), {});
  read_checkpoint(directory.path, full, read);
  EXPECT_EQ(read.size(), 500u);
  read_checkpoint(directory.path, changes, read);
  EXPECT_EQ(read.size(), 499u);
  EXPECT_FALSE(read.contains(-250));
  std::vector<std::int64_t> ids(500);
  std::iota(ids.begin(), ids.end(), -250);
  std::vector<float> want(1500), found(1500);
  const std::vector<float> more(1500, 1.0f);
  // with the state that was moved with them
  for (RowStore* one : {&store, &read}) one->update(ids, more.data());
  store.lookup(ids, want.data(), false);
  read.lookup(ids, found.data(), false);
  EXPECT_EQ(found, want);
}

TEST(EmbeddingCheckpointFile, DamageIsDetected) {
  TemporaryDirectory directory;
  const CheckpointFile file{1, 0, 0, 1};
  write_checkpoint(directory.path, file, some_rows(), 0);
  const std::string path = directory.path + "/" + file.name();
  std::stringstream whole;
  whole << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string good = whole.str();
  const auto kind = [&](const std::string& content, RowOptimizer optimizer = RowOptimizer::adam(1)) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    RowStore store(3, optimizer, {});
    return test::kind_of([&] { return read_checkpoint(directory.path, file, store), 0; });
  };
  EXPECT_EQ(kind(good), std::nullopt);
  for (std::size_t at = 0; at < good.size(); at += 1 + good.size() / 200) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    EXPECT_TRUE(kind(bad)) << at;
    EXPECT_TRUE(kind(good.substr(0, at))) << at;
  }
  EXPECT_EQ(kind(good, RowOptimizer::sgd(1)), rpc::ErrorKind::invalid_argument);
}

// Training that resumes from a checkpoint gives the same embedding, whichever owners hold its rows.
TEST(EmbeddingCheckpoint, ContinuesWithAnotherNumberOfOwners) {
  constexpr std::int64_t ids = 1500;
  TemporaryDirectory directory;
  Owners owners(4);
  const EmbeddingOptions options{4, RowOptimizer::adam(0.1), {RowInitializer::Kind::normal, 1, 3}, 0};
  const ShardedEmbedding before(owners.trainer(), options, owners.peers(2));
  EXPECT_EQ(test::kind_of([&] { return got(before.load(directory.path)); }), rpc::ErrorKind::not_found);
  touch(owners.trainer(), before, torch::arange(ids));
  const SavedRows full = got(before.save(directory.path, true));
  EXPECT_EQ(full.full, 2u) << "there is nothing to go on from";
  EXPECT_EQ(full.rows, static_cast<std::uint64_t>(ids));
  touch(owners.trainer(), before, torch::arange(100, 200), 0.5);
  touch(owners.trainer(), before, torch::arange(50, 150), -0.5);
  EXPECT_EQ(got(before.evict_unused(3)), 1350u);  // all but these
  got(before.grow(owners.peer(2)));
  touch(owners.trainer(), before, torch::arange(140, 160), 2);
  const SavedRows changes = got(before.save(directory.path, true));
  EXPECT_EQ(changes.sequence, full.sequence + 1);
  EXPECT_EQ(changes.full, 1u) << "the new owner's";
  EXPECT_LE(changes.rows, 150u);
  const at::Tensor all = torch::arange(ids), then = got(before.read(all));
  touch(owners.trainer(), before, torch::arange(300), 0.25);
  const at::Tensor later = got(before.read(all));

  for (const std::size_t count : {1u, 2u, 4u}) {
    const ShardedEmbedding after(owners.trainer(), options, owners.peers(count));
    EXPECT_EQ(got(after.load(directory.path)), 150u);
    EXPECT_TRUE(torch::equal(got(after.read(all)), then)) << count;
    touch(owners.trainer(), after, torch::arange(300), 0.25);
    EXPECT_TRUE(torch::equal(got(after.read(all)), later)) << count;
    EXPECT_EQ(test::kind_of([&] { return got(after.load(directory.path)); }),
              rpc::ErrorKind::failed_precondition)
        << "there are rows";
  }
}

TEST(EmbeddingCheckpoint, AnIncompleteCheckpointIsIgnored) {
  TemporaryDirectory directory;
  Owners owners(2);
  const ShardedEmbedding before(owners.trainer(), zeros(1), owners.peers(2));
  touch(owners.trainer(), before, torch::arange(100));
  const SavedRows first = got(before.save(directory.path));
  touch(owners.trainer(), before, torch::arange(100));
  const SavedRows second = got(before.save(directory.path, true));
  EXPECT_EQ(second.full, 0u);
  EXPECT_TRUE(std::filesystem::remove(directory.path + "/" +
                                      CheckpointFile{second.sequence, first.sequence, 1, 2}.name()));
  const ShardedEmbedding after(owners.trainer(), zeros(1), owners.peers(2));
  EXPECT_EQ(got(after.load(directory.path)), 100u);
  EXPECT_TRUE(torch::equal(got(after.read(torch::arange(100))), at::full({100, 1}, -1.0f)));
  // The owner whose file is missing writes all its rows in the next checkpoint. The other owner writes an
  // increment.
  const SavedRows third = got(before.save(directory.path, true));
  EXPECT_EQ(third.full, 1u);
  const ShardedEmbedding again(owners.trainer(), zeros(1), owners.peers(1));
  EXPECT_EQ(got(again.load(directory.path)), 100u);
  EXPECT_TRUE(torch::equal(got(again.read(torch::arange(100))), at::full({100, 1}, -2.0f)));
}

TEST(EmbeddingCheckpoint, ALoadThatFailsHalfWayIsRepeated) {
  TemporaryDirectory directory;
  Owners owners(2);
  const at::Tensor ids = torch::arange(300);
  const ShardedEmbedding written(owners.trainer(), zeros(2), owners.peers(2));
  touch(owners.trainer(), written, ids);
  got(written.save(directory.path));
  const auto damaged = std::filesystem::directory_iterator(directory.path)->path();
  const std::filesystem::path whole = directory.path + "-whole";
  std::filesystem::copy(damaged, whole);
  std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) / 2);
  const ShardedEmbedding loaded(owners.trainer(), zeros(2), owners.peers(2));
  for (int tries = 0; tries < 2; ++tries)
    EXPECT_NE(
        test::message_of([&] { return got(loaded.load(directory.path)); }).find(damaged.filename().string()),
        std::string::npos)
        << tries;
  std::filesystem::rename(whole, damaged);
  EXPECT_EQ(got(loaded.load(directory.path)), 300u);
  EXPECT_TRUE(torch::equal(got(loaded.read(ids)), got(written.read(ids))));
}

TEST(EmbeddingCheckpoint, GrowthIsRefusedWhileItIsLoaded) {
  TemporaryDirectory directory;
  const auto taking = std::make_shared<test::HeldCalls>("weft.embedding_shard.take");
  Owners owners(3, 1, [&](rpc::AgentOptions& options) {
    if (options.name == "owner1") options.interceptors.push_back(taking);
  });
  const at::Tensor ids = torch::arange(300);
  const ShardedEmbedding written(owners.trainer(), zeros(2), owners.peers(1));
  touch(owners.trainer(), written, ids);
  got(written.save(directory.path));

  const ShardedEmbedding loaded(owners.trainer(), zeros(2), owners.peers(2));
  auto loading = loaded.load(directory.path);
  taking->wait();  // owner0 has read the file, and sends its rows to owner1
  EXPECT_EQ(test::kind_of([&] { return got(loaded.grow(owners.peer(2))), 0; }),
            rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(test::kind_of([&] { return got(loaded.save(directory.path)), 0; }),
            rpc::ErrorKind::failed_precondition)
      << "of half of the rows";
  taking->release();
  EXPECT_EQ(got(std::move(loading)), 300u);
  EXPECT_TRUE(torch::equal(got(loaded.read(ids)), got(written.read(ids))));
  got(loaded.grow(owners.peer(2)));
  EXPECT_TRUE(torch::equal(got(loaded.read(ids)), got(written.read(ids))));
}

}  // namespace
}  // namespace weft::dist_optim::embedding_test
