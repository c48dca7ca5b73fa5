// Checkpoints of torch.distributed.checkpoint: what PyTorch has written is read bit by bit, whole and in
// slices. Wrong checkpoints are refused.
#include <weft/parallel/weights/sink.h>
#include <weft/parallel/weights/source.h>

#include <weft/parallel/weights/internal/dtypes.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <functional>
#include <random>
#include <thread>

#include "tests/parallel/weights/dcp_folder.h"
#include "tests/parallel/weights/files.h"

namespace weft::weights::dcp_test {
namespace {

using namespace test_files;
namespace fs = std::filesystem;

// The tensors of make_dcp.py.
std::map<std::string, at::Tensor> recorded_tensors() {
  std::map<std::string, at::Tensor> all{{"middle", known(at::kFloat, {2, 7, 3})},
                                        {"short", known(at::kShort, {2, 2})},
                                        {"scalar", known(at::kFloat, {})},
                                        {"plain", known(at::kDouble, {3})},
                                        {"plain_scalar", known(at::kBFloat16, {})},
                                        {"transposed", known(at::kFloat, {4, 6}).t()},
                                        {"part", known(at::kInt, {4, 6}).narrow(0, 1, 2).narrow(1, 2, 2)},
                                        {"empty", known(at::kLong, {0, 3})},
                                        {"list.1", known(at::kByte, {2})},
                                        {"pair.0", known(at::kFloat, {2})},
                                        {"model.0.weight", known(at::kFloat, {5, 3})},
                                        {"model.0.bias", known(at::kFloat, {5})},
                                        {"model.1.weight", known(at::kFloat, {2, 5})},
                                        {"model.1.bias", known(at::kFloat, {2})}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kFloat8_e4m3fn, at::kBool}) {
    all["rows." + name_of(type)] = all["columns." + name_of(type)] = known(type, {5, 6});
    if (type == at::kFloat || type == at::kBool) all["copied." + name_of(type)] = known(type, {5, 6});
  }
  return all;
}

class Dcp : public Files {
 protected:
  fs::path put_folder(const DcpFolder& folder) const {
    fs::create_directory(path("dcp"));
    put("dcp/.metadata", folder.metadata());
    put("dcp/__0_0.distcp", folder.entries);
    return path("dcp");
  }
  // A checkpoint of two chunks, which `change` makes wrong.
  void expect_folder_refused(const std::function<void(DcpFolder&)>& change, const std::string& what,
                             rpc::ErrorKind kind = rpc::ErrorKind::failed_precondition) const {
    DcpFolder folder({4, 3});
    folder.add({0, 0}, {2, 3}).add({2, 0}, {2, 3}, 6);
    change(folder);
    expect_refused(put_folder(folder), what, kind);
  }
};

TEST_F(Dcp, HasTheTensorsOfOneAndOfThreeRanks) {
  const auto expected = recorded_tensors();
  for (const char* folder : {"dcp_one", "dcp_three"}) {
    const auto source = open_source(recorded(folder));
    EXPECT_EQ(source->tensors().size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      expect_same(source->view(name), tensor, name);
      const at::Tensor to = at::empty(tensor.sizes(), tensor.options());
      source->read(name, to);
      expect_same(to, tensor, name);
    }
  }
}

TEST_F(Dcp, HasNumbersAndTextsAsNotes) {
  const std::map<std::string, std::string> notes{{"values.step", "7"},
                                                 {"values.rate", "0.25"},
                                                 {"values.done", "True"},
                                                 {"values.text", "caf\xc3\xa9"},
                                                 {"values.none", "None"},
                                                 {"values.betas.0", "0.5"},
                                                 {"values.betas.1", "0.75"},
                                                 {"values.list.0", "1"},
                                                 {"values.list.1", "2"},
                                                 {"list.0", "3"},
                                                 {"pair.1", "4"}};
  for (const char* folder : {"dcp_one", "dcp_three"})
    EXPECT_EQ(open_source(recorded(folder))->notes(), notes) << folder;
}

TEST_F(Dcp, ReadsSlices) {
  std::mt19937 random(1);
  const auto below = [&](std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end)(random);
  };
  const auto expected = recorded_tensors();
  for (const char* folder : {"dcp_one", "dcp_three"}) {
    const auto source = open_source(recorded(folder), {.checksums = false});
    for (int i = 0; i < 20; ++i)
      for (const auto& [name, tensor] : expected) {
        Slice slice;
        slice.flattened = i % 2 != 0;
        const at::Tensor flat = tensor.reshape({-1}), &whole = slice.flattened ? flat : tensor;
        for (std::int64_t dim = 0; dim < whole.dim(); ++dim) {
          const std::int64_t begin = below(whole.size(dim));
          slice.extents.push_back({dim, begin, begin + below(whole.size(dim) - begin)});
        }
        const at::Tensor part = slice.of(whole, name), to = at::empty(part.sizes(), part.options());
        source->read(name, to, slice);
        expect_same(to, part, name);
        // Into memory that is not contiguous, and of another dtype.
        std::vector<std::int64_t> twice = part.sizes().vec();
        twice.push_back(2);
        const at::Tensor strided = at::empty(twice, part.options()).select(-1, 0);
        source->read(name, strided, slice);
        expect_same(strided, part, name);
        const at::Tensor converted = at::empty(part.sizes(), at::kDouble);
        source->read(name, converted, slice, true);
        expect_same(converted, part.to(at::kDouble), name);
      }
  }
}

TEST_F(Dcp, ViewsOneChunkInMappedMemory) {
  const auto source = open_source(recorded("dcp_one"));  // bytes are always aligned
  EXPECT_EQ(source->view("rows.bool").const_data_ptr(), source->view("rows.bool").const_data_ptr());
}

TEST_F(Dcp, RefusesWrongSlicesAndTargets) {
  const auto source = open_source(recorded("dcp_three"));
  const auto refused = [&](const at::Tensor& to, const Slice& slice, const std::string& what) {
    const auto error = weft::test::error_of([&] { return source->read("rows.float32", to, slice), 0; });
    ASSERT_TRUE(error) << what;
    EXPECT_EQ(error->kind(), rpc::ErrorKind::invalid_argument);
    EXPECT_NE(std::string(error->what()).find(what), std::string::npos) << error->what();
  };
  refused(at::empty({5, 5}), {}, "has a slice of float32 [5, 6], the tensor to fill is float32 [5, 5]");
  refused(at::empty({5, 6}, at::kLong), {}, "is float32 [5, 6], the tensor to fill is int64 [5, 6]");
  refused(at::empty({2, 6}), Slice::rows(4, 6), "the slice has the indices 4 to 6 of dimension 0");
  refused({}, {}, "not defined");
  EXPECT_TRUE(weft::test::error_of([&] { return source->view("none"), 0; }));
}

TEST_F(Dcp, IsReadBySeveralThreads) {
  const auto source = open_source(recorded("dcp_three"));
  const auto expected = recorded_tensors();
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (const auto& [name, tensor] : expected) expect_same(source->view(name), tensor, name);
    });
}

TEST_F(Dcp, IsCopiedToAllFormats) {
  for (const char* file : {"a.safetensors", "a.pt"}) {
    copy(*open_source(recorded("dcp_three")), *create_sink(path(file)));
    const auto source = open_source(path(file));
    for (const auto& [name, tensor] : recorded_tensors()) expect_same(source->view(name), tensor, name);
  }
}

TEST_F(Dcp, ChunksMayBeAnyBoxesThatFillTheTensor) {
  DcpFolder pinwheel({3, 3});  // no line through the tensor separates its chunks
  pinwheel.add({0, 0}, {1, 2}, 0).add({0, 2}, {2, 1}, 2).add({2, 1}, {1, 2}, 4).add({1, 0}, {2, 1}, 6);
  pinwheel.add({1, 1}, {1, 1}, 8);
  const at::Tensor whole = at::tensor({0.F, 1.F, 2.F, 6.F, 8.F, 3.F, 7.F, 4.F, 5.F}).view({3, 3});
  expect_same(open_source(put_folder(pinwheel))->view("a"), whole, "pinwheel");
  std::swap(pinwheel.chunks[0].offsets, pinwheel.chunks[4].offsets);
  expect_refused(put_folder(pinwheel), "has chunks that overlap, and lacks elements");

  DcpFolder earlier({1});
  earlier.properties = "_shard.sharded_tensor.metadata";
  expect_same(open_source(put_folder(earlier.add({0}, {1}, 3)))->view("a"), at::full({1}, 3.F), "earlier");

  DcpFolder none({0, 3});
  EXPECT_EQ(open_source(put_folder(none))->view("a").sizes(), at::IntArrayRef({0, 3}));
  DcpFolder scalar({});
  expect_refused(put_folder(scalar), "lacks 1 elements");
  expect_same(open_source(put_folder(scalar.add({}, {}, 5)))->view("a"), at::full({}, 5.F), "scalar");
  DcpFolder many({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1, 1});
  many.add({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  many.add({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 1);
  expect_same(open_source(put_folder(many))->view("a").flatten(), at::arange(2, at::kFloat),
              "many dimensions");
}

TEST_F(Dcp, RefusesChunksThatAreNotTheTensor) {
  expect_folder_refused([](DcpFolder& all) { all.chunks.pop_back(); }, "lacks 6 elements");
  expect_folder_refused([](DcpFolder& all) { all.sizes[0] = 5; }, "lacks 3 elements");
  expect_folder_refused([](DcpFolder& all) { all.sizes[0] = 3; }, "has a chunk outside of it");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].offsets[0] = 1; },
                        "that overlap, and lacks elements");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].offsets[0] = 0; }, "two entries of one chunk");
  expect_folder_refused([](DcpFolder& all) { all.add({1, 0}, {1, 3}); }, "has chunks that overlap");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].offsets.pop_back(); },
                        "has a chunk outside of it");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].offsets[0] = -1; }, "negative");
  expect_folder_refused([](DcpFolder& all) { all.sizes = {std::int64_t{1} << 40, 1 << 20}; },
                        "too many elements");
  expect_folder_refused([](DcpFolder& all) { all.sizes = std::vector<std::int64_t>(65, 1); },
                        "at most 64 numbers");
  expect_folder_refused(
      [](DcpFolder& all) {
        const std::int64_t huge = std::int64_t{1} << 50;
        all.sizes = {huge, 3}, all.chunks.pop_back(), all.chunks[0].sizes = {huge, 3};
      },
      "is in an entry of");
  // What the entry has differs from what .metadata says.
  expect_folder_refused([](DcpFolder& all) { all.dtype = "torch\nint32"; },
                        "the chunk of 'a' is float32 [2, 3], expected int32 [2, 3]");
  expect_folder_refused(
      [](DcpFolder& all) {
        all.sizes = {6, 2}, all.chunks[0].sizes = all.chunks[1].sizes = {3, 2},
        all.chunks[1].offsets = {3, 0};
      },
      "the chunk of 'a' is float32 [2, 3], expected float32 [3, 2]");
}

TEST_F(Dcp, RefusesEntriesThatAreNotInTheFolder) {
  expect_folder_refused([](DcpFolder& all) { all.chunks[0].file = "../dcp/__0_0.distcp"; },
                        "is not in the folder");
  expect_folder_refused([](DcpFolder& all) { all.chunks[0].file = "/etc/passwd"; }, "is not in the folder");
  expect_folder_refused([](DcpFolder& all) { all.chunks[0].file = ".."; }, "is not in the folder");
  expect_folder_refused([](DcpFolder& all) { all.chunks[0].file = ""; }, "cannot be mapped");
  expect_folder_refused([](DcpFolder& all) { all.chunks[0].file = "__1_0.distcp"; }, "cannot be opened");
  expect_folder_refused([](DcpFolder& all) { all.entries.resize(all.entries.size() - 2); }, "is outside of");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].begin = std::int64_t{1} << 62; }, "is outside of");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].size = std::int64_t{1} << 62; }, "is outside of");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].begin = -1; }, "negative");
  expect_folder_refused([](DcpFolder& all) { all.chunks[0].size += 2; }, "two entries overlap");
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].size -= 1; },
                        "no end record: the file is truncated");
  expect_folder_refused([](DcpFolder& all) { all.entries[all.entries.find("\x80\x3f")] ^= 1; }, "is damaged");
  expect_folder_refused([](DcpFolder& all) { all.entries[0] = 'x'; }, "SerializationFormat.SAFETENSORS",
                        rpc::ErrorKind::unsupported);
  expect_folder_refused([](DcpFolder& all) { all.chunks[1].begin = 8; }, "SerializationFormat.SAFETENSORS",
                        rpc::ErrorKind::unsupported);
  expect_folder_refused(
      [](DcpFolder& all) {
        all.chunks[0].more = {{"transform_descriptors", "](" + pickled(std::string("zstd")) + "e"}};
      },
      "the extension 'zstd'", rpc::ErrorKind::unsupported);
}

TEST_F(Dcp, RefusesEverythingElseInItsMetadata) {
  DcpFolder folder({2});
  folder.add({0}, {2});
  const fs::path dcp = put_folder(folder);
  const auto refuse = [&](const std::string& metadata, const std::string& what,
                          rpc::ErrorKind kind = rpc::ErrorKind::failed_precondition) {
    put("dcp/.metadata", metadata);
    expect_refused(dcp, what, kind);
  };
  const std::string good = folder.metadata();
  for (std::size_t size = 0; size < good.size(); ++size) refuse(good.substr(0, size), "is damaged");
  refuse("\x80\2" + std::string("cos\nsystem\nU\4trueR."), "the global 'os.system'",
         rpc::ErrorKind::unsupported);
  refuse("\x80\2" + std::string("}."), "expected Metadata");
  refuse("\x80\2" + std::string("ctorch\nSize\n)\x81."), "'torch.Size' has no objects");
  refuse("\x80\2" + pickled_object("metadata\nMetadata", {}) + ".", "lacks the field 'storage_data'");
  refuse("\x80\2" + pickled_object("metadata\nMetadata", {}) + "}b.", "has two states");
  refuse("\x80\2" + pickled_object("metadata\nMetadata", {{"storage_data", "N"}}) + ".", "is not a dict");
  // A record whose state is the record, and a dictionary in itself.
  refuse("\x80\2" + std::string("ctorch.distributed.checkpoint.metadata\nMetadata\n)\x81q\1h\1b."),
         "has no fields");
  refuse("\x80\2" +
             pickled_object("metadata\nMetadata",
                            {{"storage_data", "}"},
                             {"state_dict_metadata", "}q\1" + pickled(std::string("a")) + "h\1s"}}) +
             ".",
         "expected TensorStorageMetadata");
  // One chunk many times.
  std::string often = good;
  const std::string chunk = pickled_object("metadata\nChunkStorageMetadata",
                                           {{"offsets", pickled_size({0})}, {"sizes", pickled_size({2})}});
  std::string again = chunk + "q\1";
  for (int i = 0; i < 500; ++i) again += "h\1";
  often.replace(often.find(chunk), chunk.size(), again);
  refuse(often, "has chunks that overlap");
  put("dcp/.metadata", good);
  EXPECT_EQ(open_source(dcp)->tensors().size(), 1U);
}

TEST_F(Dcp, SaysWhichValuesAreLeftOut) {
  // A value of a class, as an entry of torch.save().
  const std::string entry = torch_zip({{"a/data.pkl", std::string("\x80\2c__main__\nX\n)\x81.")}});
  const auto value = [&](const std::string& name) {
    return pickled_object("metadata\nMetadataIndex", {{"fqn", pickled(name)}, {"offset", "N"}});
  };
  fs::create_directory(path("dcp"));
  put("dcp/__0_0.distcp", entry);
  put("dcp/.metadata",
      "\x80\2" +
          pickled_object(
              "metadata\nMetadata",
              {{"state_dict_metadata",
                "}" + pickled(std::string("x")) +
                    "ctorch.distributed.checkpoint.metadata\nBytesStorageMetadata\n)\x81s"},
               {"storage_data",
                "}" + value("x") +
                    pickled_object("filesystem\n_StorageInfo",
                                   {{"relative_path", pickled(std::string("__0_0.distcp"))},
                                    {"offset", pickled(std::int64_t{0})},
                                    {"length", pickled(static_cast<std::int64_t>(entry.size()))}}) +
                    "s"}}) +
          ".");
  EXPECT_EQ(open_source(path("dcp"))->notes(), (std::map<std::string, std::string>{{"weft.left_out", "x"}}));
}

TEST_F(Dcp, IsOnlyAFolderWithMetadata) {
  fs::create_directory(path("dcp"));
  expect_refused(path("dcp"), "nor .metadata");
  put("dcp/manifest.safetensors", "");
  expect_refused(path("dcp"), "sharded::open_checkpoint()", rpc::ErrorKind::unsupported);
  put("dcp/__0.metadata", "");
  expect_refused(path("dcp"), "use_collectives=True", rpc::ErrorKind::unsupported);
}

}  // namespace
}  // namespace weft::weights::dcp_test
