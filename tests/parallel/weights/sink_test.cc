// Sinks: what they write is read back bit by bit, in each format and from several ranks, and appears all at
// once.
#include <weft/parallel/weights/sink.h>

#include <weft/parallel/weights/internal/dtypes.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <set>

#include "tests/parallel/weights/files.h"

namespace weft::weights::sink_test {
namespace {

using namespace test_files;
using Tensors = std::map<std::string, at::Tensor>;

class Sinks : public Files {
 protected:
  static void write(const std::filesystem::path& path, const Tensors& tensors, SinkOptions options = {}) {
    const auto sink = create_sink(path, options);
    sink->declare(forms_of(tensors), {{"epoch", "4"}});
    for (const auto& [name, tensor] : tensors) sink->write(name, tensor);
    sink->finish();
  }
  static void expect_holds(const std::filesystem::path& path, const Tensors& tensors) {
    const auto source = open_source(path);
    EXPECT_EQ(source->tensors().size(), tensors.size());
    for (const auto& [name, tensor] : tensors)
      expect_same(source->view(name), tensor, path.string() + " " + name);
  }
  static std::set<std::string> names_in(const std::filesystem::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      names.insert(entry.path().filename().string());
    return names;
  }
};

TEST_F(Sinks, KeepEveryType) {
  Tensors all{{"scalar", known(at::kFloat, {})}, {"empty", known(at::kLong, {0, 3})}};
  for (const at::ScalarType type : every_type)
    if (is_of_safetensors(type)) all[name_of(type)] = known(type, {2, 3});
  for (const char* name : {"file.safetensors", "file.pt", "folder"}) {
    write(path(name), all);
    expect_holds(path(name), all);
  }
  EXPECT_EQ(open_source(path("file.safetensors"))->notes().at("epoch"), "4");
  for (const at::ScalarType type : {at::kComplexDouble, at::kComplexHalf}) {
    const Tensors one{{"x", known(type, {2, 3})}};
    write(path("complex.pth"), one);
    expect_holds(path("complex.pth"), one);
    EXPECT_EQ(weft::test::kind_of([&] { return write(path("new.safetensors"), one), 0; }),
              rpc::ErrorKind::invalid_argument);
  }
  EXPECT_FALSE(std::filesystem::exists(path("new.safetensors.part")));
}

TEST_F(Sinks, DropNotesThatWouldBeTensors) {
  const auto sink = create_sink(path("file.safetensors"));
  sink->declare(forms_of({{"x", at::ones({1})}}), {{"best", "x"}, {"x", "x"}, {"last", "y"}});
  sink->write("x", at::ones({1}));
  sink->finish();
  expect_holds(path("file.safetensors"), {{"x", at::ones({1})}});
  EXPECT_EQ(open_source(path("file.safetensors"))->notes(),
            (std::map<std::string, std::string>{{"format", "pt"}, {"last", "y"}, {"x", "x"}}));
}

TEST_F(Sinks, KeepNamesThatNotesAlsoHave) {
  const at::Tensor tied = at::arange(3, at::kFloat);
  const Tensors all{{"a", tied}, {"b", tied}, {"pt", at::ones({2})}};
  for (const char* name : {"file.safetensors", "folder"}) {
    const auto sink = create_sink(path(name));
    sink->declare(forms_of(all), {{"b", "a text"}});
    for (const auto& [tensor, values] : all) sink->write(tensor, values);
    sink->finish();
    expect_holds(path(name), all);
  }
}

TEST_F(Sinks, KeepAnEmptyName) {
  const Tensors all{{"", at::ones({2})}, {"b", at::zeros({2})}};
  write(path("file.safetensors"), all);
  copy(*open_source(path("file.safetensors")), *create_sink(path("again.safetensors")));
  expect_holds(path("again.safetensors"), all);
}

TEST_F(Sinks, KeepNothing) {
  for (const char* name : {"file.safetensors", "file.pt", "folder"}) {
    write(path(name), {});
    expect_holds(path(name), {});
  }
}

TEST_F(Sinks, WriteTensorsOfAnyLayout) {
  const at::Tensor whole = at::arange(24, at::kFloat).view({4, 6});
  const Tensors all{{"transposed", whole.t()},
                    {"columns", at::arange(24).view({4, 6}).narrow(1, 1, 2)},
                    {"expanded", at::ones({3, 1}).expand({3, 5})},
                    {"channels", at::arange(24).view({1, 2, 3, 4}).permute({0, 3, 1, 2})},
                    {"a view", whole.narrow(0, 1, 2)}};
  for (const char* name : {"file.safetensors", "file.pt", "folder"}) {
    write(path(name), all);
    expect_holds(path(name), all);
  }
  EXPECT_EQ(open_source(path("file.pt"))->view("channels").strides(), all.at("channels").strides());
}

TEST_F(Sinks, WriteSharedStoragesOnce) {
  const at::Tensor tied = at::arange(30'000, at::kFloat);
  const Tensors all{{"a", tied}, {"b", tied}, {"half", tied.narrow(0, 15'000, 10)}};
  write(path("file.pt"), all);
  expect_holds(path("file.pt"), all);
  EXPECT_LT(std::filesystem::file_size(path("file.pt")), tied.nbytes() + 3000);
  const auto torch = open_source(path("file.pt"));
  EXPECT_TRUE(torch->form("a").is_same_as(torch->form("b")));
  EXPECT_EQ(torch->form("a").storage, torch->form("half").storage);

  write(path("file.safetensors"), all);
  expect_holds(path("file.safetensors"), all);
  const auto safetensors = open_source(path("file.safetensors"));
  EXPECT_LT(std::filesystem::file_size(path("file.safetensors")), tied.nbytes() + 3000);
  EXPECT_EQ(safetensors->notes().at("b"), "a") << "as save_model() of safetensors says it";
  EXPECT_TRUE(safetensors->form("a").is_same_as(safetensors->form("b")));
  // Both directions of a conversion keep it.
  copy(*safetensors, *create_sink(path("again.pt")));
  expect_holds(path("again.pt"), all);
  EXPECT_TRUE(open_source(path("again.pt"))->form("a").is_same_as(open_source(path("again.pt"))->form("b")));
}

// A storage and a dtype are not one text: "x" + "bfloat16" is "xb" + "float16".
TEST_F(Sinks, KeepStoragesApart) {
  const at::Tensor one = at::arange(4, at::kBFloat16), other = at::arange(4, 8, at::kHalf);
  const Tensors all{{"a", one.narrow(0, 0, 2)},
                    {"b", one.narrow(0, 2, 2)},
                    {"c", other.narrow(0, 0, 2)},
                    {"d", other.narrow(0, 2, 2)}};
  TensorForms forms = forms_of(all);
  forms.at("a").storage = forms.at("b").storage = "x";
  forms.at("c").storage = forms.at("d").storage = "xb";
  const auto sink = create_sink(path("file.pt"));
  sink->declare(forms);
  for (const auto& [name, tensor] : all) sink->write(name, tensor);
  sink->finish();
  expect_holds(path("file.pt"), all);
}

TEST_F(Sinks, SplitAFolderIntoShards) {
  Tensors all;
  for (int i = 0; i < 5; ++i) all["t" + std::to_string(i)] = at::full({25}, i, at::kFloat);
  write(path("folder"), all, {.max_shard_bytes = 250});
  expect_holds(path("folder"), all);
  const std::set<std::string> first{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                    "model-00003-of-00003.safetensors", "model.safetensors.index.json"};
  EXPECT_EQ(names_in(path("folder")), first);
  // The next model has other names until it is complete; what is not a shard stays.
  std::ofstream(path("folder") / "model-notes.safetensors") << "mine";
  all["t0"] = at::zeros({25});
  {
    const auto sink = create_sink(path("folder"), {.max_shard_bytes = 250});
    sink->declare(forms_of(all));
    for (const auto& [name, tensor] : all) sink->write(name, tensor);
    EXPECT_EQ(open_source(path("folder"))->view("t1").sum().item<float>(), 25);
    sink->finish();
  }
  expect_holds(path("folder"), all);
  EXPECT_EQ(names_in(path("folder")),
            (std::set<std::string>{"model-notes.safetensors", "model-v2-00001-of-00003.safetensors",
                                   "model-v2-00002-of-00003.safetensors",
                                   "model-v2-00003-of-00003.safetensors", "model.safetensors.index.json"}));
}

TEST_F(Sinks, RemoveOnlyShards) {
  std::filesystem::create_directory(path("folder"));
  put("folder/tokenizer.json", "{}");
  put("folder/model.safetensors.index.json", R"({"weight_map":{"a":"tokenizer.json"}})");
  write(path("folder"), {{"x", at::ones({1})}});
  EXPECT_TRUE(std::filesystem::exists(path("folder/tokenizer.json")));
}

TEST_F(Sinks, SeveralRanksWriteOneFile) {
  const at::Tensor a = at::arange(24, at::kFloat).view({4, 6}), b = at::arange(7);
  const TensorForms forms = forms_of({{"a", a}, {"b", b}});
  for (const char* name : {"file.safetensors", "file.pt", "folder"}) {
    const auto first = create_sink(path(name), {.rank = 0, .ranks = 2, .max_shard_bytes = 60});
    const auto second = create_sink(path(name), {.rank = 1, .ranks = 2, .max_shard_bytes = 60});
    EXPECT_EQ(weft::test::kind_of([&] { return second->declare(forms), 0; }),
              rpc::ErrorKind::failed_precondition)
        << "rank 0 comes first";
    first->declare(forms);
    const auto late = create_sink(path(name), {.rank = 1, .ranks = 2, .max_shard_bytes = 60});
    late->declare(forms);
    first->write("a", a.narrow(1, 0, 2), {{{1, 0, 2}}});
    late->write("a", a.narrow(1, 2, 4), {{{1, 2, 6}}});
    first->write("b", b.narrow(0, 0, 3), Slice::flat(0, 3));
    late->write("b", b.narrow(0, 3, 4), Slice::rows(3, 7));
    late->finish();
    EXPECT_FALSE(std::filesystem::exists(path(name) / "model.safetensors.index.json"));
    first->finish();
    expect_holds(path(name), {{"a", a}, {"b", b}});
  }
}

// The addresses of storages differ between processes.
TEST_F(Sinks, SeveralRanksAgreeOnStorages) {
  const at::Tensor one = at::arange(100), other = at::arange(100, 300);
  const Tensors all{{"a", one.narrow(0, 0, 50)},
                    {"b", one.narrow(0, 50, 50)},
                    {"c", other.narrow(0, 0, 80)},
                    {"d", other.narrow(0, 80, 120)}};
  std::unique_ptr<Sink> sinks[2];
  for (int rank = 0; rank < 2; ++rank) {
    TensorForms forms = forms_of(all);
    forms.at("a").storage = forms.at("b").storage = rank == 0 ? "1" : "2";
    forms.at("c").storage = forms.at("d").storage = rank == 0 ? "2" : "1";
    sinks[rank] = create_sink(path("file.pt"), {.rank = rank, .ranks = 2});
    sinks[rank]->declare(forms);
  }
  for (const auto& [name, tensor] : all) sinks[name == "a" ? 0 : 1]->write(name, tensor);
  sinks[1]->finish();
  sinks[0]->finish();
  expect_holds(path("file.pt"), all);
}

TEST_F(Sinks, AnUnfinishedFileLeavesTheEarlierOne) {
  for (const char* name : {"file.safetensors", "file.pt"}) {
    const Tensors old{{"x", at::zeros({3})}};
    write(path(name), old);
    {
      const auto sink = create_sink(path(name));
      sink->declare(forms_of({{"x", at::ones({3})}}));
      sink->write("x", at::ones({2}), Slice::rows(0, 2));
      EXPECT_TRUE(std::filesystem::exists(path(name).string() + ".part"));
      const auto error = weft::test::error_of([&] { return sink->finish(), 0; });
      ASSERT_TRUE(error);
      EXPECT_NE(std::string(error->what()).find("have not been written: x"), std::string::npos)
          << error->what();
      // Another writer at the same time.
      EXPECT_EQ(weft::test::kind_of([&] { return write(path(name), old), 0; }),
                rpc::ErrorKind::failed_precondition);
    }
    expect_holds(path(name), old);
    EXPECT_FALSE(std::filesystem::exists(path(name).string() + ".part"));
    // What a killed writer left.
    put(std::string(name) + ".part", std::string(100'000, 'x'));
    write(path(name), {{"x", at::ones({3})}});
    expect_holds(path(name), {{"x", at::ones({3})}});
  }
}

TEST_F(Sinks, RefuseWrongValues) {
  const auto sink = create_sink(path("file.safetensors"));
  sink->declare(forms_of({{"x", at::zeros({3})}}));
  const auto refused = [&](const char* name, const at::Tensor& values, const Slice& slice) {
    return weft::test::kind_of([&] { return sink->write(name, values, slice), 0; }) ==
           rpc::ErrorKind::invalid_argument;
  };
  EXPECT_TRUE(refused("y", at::zeros({3}), {}));
  EXPECT_TRUE(refused("x", at::zeros({4}), {}));
  EXPECT_TRUE(refused("x", at::zeros({3}, at::kLong), {}));
  EXPECT_TRUE(refused("x", at::zeros({3}), Slice::rows(1, 4)));
  EXPECT_TRUE(refused("x", {}, {}));
  EXPECT_EQ(weft::test::kind_of([&] { return sink->declare({}), 0; }), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(weft::test::kind_of([&] { return create_sink(path("file.txt")), 0; }),
            rpc::ErrorKind::invalid_argument);
}

TEST_F(Sinks, RefuseNamesThatAreNotText) {
  const TensorForms forms = forms_of({{"\xff", at::zeros({1})}});
  for (const char* name : {"new.safetensors", "new.pt"})
    EXPECT_EQ(weft::test::kind_of([&] { return create_sink(path(name))->declare(forms), 0; }),
              rpc::ErrorKind::invalid_argument)
        << name;
}

TEST_F(Sinks, AreFinishedOnce) {
  const Tensors all{{"x", at::zeros({3})}};
  const auto sink = create_sink(path("file.safetensors"));
  EXPECT_EQ(weft::test::kind_of([&] { return sink->finish(), 0; }), rpc::ErrorKind::invalid_argument);
  sink->declare(forms_of(all));
  sink->write("x", all.at("x"));
  sink->finish();
  EXPECT_EQ(weft::test::kind_of([&] { return sink->write("x", at::ones({3})), 0; }),
            rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(weft::test::kind_of([&] { return sink->finish(), 0; }), rpc::ErrorKind::invalid_argument);
  expect_holds(path("file.safetensors"), all);
}

TEST_F(Sinks, RefuseAPathThatIsTooLong) {
  const auto file = path(std::string(300, 'x') + ".safetensors");
  expect_refused(file, "cannot be opened");
  const auto error =
      weft::test::error_of([&] { return create_sink(file)->declare(forms_of({{"x", at::zeros({1})}})), 0; });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), rpc::ErrorKind::failed_precondition) << error->what();
}

TEST_F(Sinks, AFullDiskIsAnError) {
  if (!std::filesystem::exists("/dev/shm")) GTEST_SKIP() << "there is no /dev/shm";
  const std::filesystem::path file = "/dev/shm/weft-full-" + std::to_string(::getpid()) + ".safetensors";
  const TensorForms forms{{"x", {at::kByte, {std::int64_t{1} << 50}}}};
  const auto error = weft::test::error_of([&] { return create_sink(file)->declare(forms), 0; });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), rpc::ErrorKind::resource_exhausted) << error->what();
  EXPECT_FALSE(std::filesystem::exists(file.string() + ".part"));
}

}  // namespace
}  // namespace weft::weights::sink_test
