// A checkpoint as a source: whole tensors and slices of them, from ranks that have rows, columns, or any
// elements.
#include <weft/parallel/sharded/checkpoint/open_checkpoint.h>

#include <weft/parallel/sharded/checkpoint/export_tensors.h>
#include <weft/parallel/sharded/checkpoint/slice_file.h>
#include <weft/parallel/weights/sink.h>

#include <fstream>
#include <random>

#include "tests/parallel/sharded/checkpoint/states.h"

namespace weft::sharded::testing {
namespace open_checkpoint_test {

namespace fs = std::filesystem;

class OpenCheckpoint : public ::testing::Test {
 protected:
  static constexpr int ranks = 3;
  Folder folder;
  Whole whole = whole_of(4);

  static Whole whole_of(std::int64_t seed) {
    Whole all;
    for (const auto& [name, tensor] : whole_state(seed)) all["model/" + name] = tensor;
    all["split"] = at::arange(3 * 4 * 5 * 2).view({3, 4, 5, 2}).to(at::kShort);
    return all;
  }
  // The tensor "split" along dimension 2; the others by elements.
  SlicedState part_of(int rank) const {
    Whole others = whole;
    others.erase("split");
    SlicedState state = state_of(others, even_split(rank, ranks));
    const std::int64_t first = 5 * rank / ranks, length = 5 * (rank + 1) / ranks - first;
    state.tensors["split"] = {{3, 4, 5, 2},
                              0,
                              whole.at("split").narrow(2, first, length).flatten(),
                              Runs{first * 2, length * 2, 10}};
    return state;
  }
  void save(std::int64_t step) const {
    CheckpointFolder checkpoints(folder.path);
    const fs::path unfinished = checkpoints.begin(step);
    Manifest manifest{step, {}, {{"epoch", "2"}}};
    for (int rank = 0; rank < ranks; ++rank) {
      const SlicedState state = part_of(rank);
      std::vector<std::string> names;
      for (const auto& [name, tensor] : state.tensors) names.push_back(name);
      manifest.files.push_back(
          write_slices(CheckpointFolder::file_of(unfinished, static_cast<std::size_t>(rank), ranks),
                       state.tensors, names));
    }
    checkpoints.complete(unfinished, manifest);
  }
  fs::path file(std::int64_t step, std::size_t rank) const {
    return CheckpointFolder::file_of(CheckpointFolder(folder.path).of_step(step), rank, ranks);
  }
};

TEST_F(OpenCheckpoint, HasWholeTensors) {
  save(7);
  const auto source = open_checkpoint(folder.path, 7);
  EXPECT_EQ(source->notes(), (std::map<std::string, std::string>{{"epoch", "2"}}));
  EXPECT_EQ(source->tensors().size(), whole.size());
  for (const auto& [name, tensor] : whole) {
    EXPECT_EQ(source->view(name).sizes(), tensor.sizes()) << name;
    expect_same(source->view(name), tensor, name);
  }
}

TEST_F(OpenCheckpoint, ReadsSlices) {
  save(7);
  const auto source = open_checkpoint(folder.path, 7);
  std::mt19937 random(1);
  const auto below = [&](std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end)(random);
  };
  for (int i = 0; i < 60; ++i)
    for (const auto& [name, tensor] : whole) {
      if (name == "model/large" && i > 3) continue;
      weights::Slice slice;
      slice.flattened = i % 2 != 0;
      const at::Tensor seen = slice.flattened ? tensor.reshape({-1}) : tensor;
      for (std::int64_t dim = 0; dim < seen.dim(); ++dim) {
        const std::int64_t begin = below(seen.size(dim));
        if (i % 4 != 0 || dim == i / 4 % seen.dim())
          slice.extents.push_back({dim, begin, begin + below(seen.size(dim) - begin)});
      }
      const at::Tensor part = slice.of(tensor, name), to = at::empty(part.sizes(), part.options());
      source->read(name, to, slice);
      expect_same(to, part, name);
    }
}

TEST_F(OpenCheckpoint, IsCopiedIntoOtherFormats) {
  save(7);
  const fs::path file = folder.path / "model.pt";
  weights::copy(*open_checkpoint(folder.path, 7), *weights::create_sink(file),
                {.names = weights::prefixes({{"model/", ""}, {"split", "other"}})});
  const auto source = weights::open_source(file);
  EXPECT_EQ(source->tensors().size(), whole.size());
  expect_same(source->view("large"), whole.at("model/large"), "large");
  expect_same(source->view("other"), whole.at("split"), "other");
  // A tensor file of dist_optim, whose path may be any, is a file of safetensors.
  export_tensors(folder.path, 7, folder.path / "latest", "model/");
  const auto exported = weights::open_source(folder.path / "latest");
  EXPECT_EQ(exported->tensors().size(), whole.size() - 1);
  expect_same(exported->view("large"), whole.at("model/large"), "large");
  EXPECT_EQ(exported->notes().at("epoch"), "2");
}

TEST_F(OpenCheckpoint, ChecksWhatItReads) {
  save(7);
  {  // an element of "model/large" of rank 1
    std::fstream bytes(file(7, 1), std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(-200'000, std::ios::end);
    bytes.put('\x55');
  }
  const auto source = open_checkpoint(folder.path, 7);
  const at::Tensor rows = at::empty({50, 1001});
  source->read("model/large", rows, weights::Slice::rows(0, 50));
  expect_same(rows, whole.at("model/large").narrow(0, 0, 50), "the rows of rank 0");
  test::expect_error([&] { return source->view("model/large"), 0; }, ErrorKind::failed_precondition,
                     {"rank-1-of-3", "is damaged"});
  test::expect_error([&] { return source->view("x"), 0; }, ErrorKind::not_found, {"has no tensor 'x'"});
  fs::remove(file(7, 2));
  EXPECT_TRUE(error_of([&] { return open_checkpoint(folder.path, 7), 0; }));
  EXPECT_TRUE(error_of([&] { return open_checkpoint(folder.path, 6), 0; }));
}

TEST_F(OpenCheckpoint, IsFoundByTheFolderOfAStepOrTheNewest) {
  EXPECT_EQ(find_checkpoint(folder.path), nullptr);
  EXPECT_EQ(find_checkpoint(folder.path / "none"), nullptr);
  whole = whole_of(1);
  save(1);
  whole = whole_of(2);
  save(2);
  const std::string steps = (folder.path / "step-00000000").string();
  const auto scalar = [](const std::shared_ptr<weights::Source>& source) {
    return source->view("model/scalar").item<double>();
  };
  EXPECT_EQ(scalar(find_checkpoint(folder.path)), 4.5);
  EXPECT_EQ(scalar(find_checkpoint(steps + "1")), 3.5);
  EXPECT_EQ(scalar(find_checkpoint(steps + "2/")), 4.5);
}

}  // namespace open_checkpoint_test
}  // namespace weft::sharded::testing
