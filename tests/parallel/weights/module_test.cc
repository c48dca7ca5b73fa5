// Modules get the weights of files, by any names, and give them back. All that does not fit is in one error,
// and changes nothing.
#include <weft/parallel/weights/module.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "tests/parallel/weights/files.h"

namespace weft::weights::module_test {
namespace {

using namespace test_files;

torch::nn::Sequential mlp() {
  torch::nn::Sequential model(torch::nn::Linear(4, 3), torch::nn::BatchNorm1d(3), torch::nn::Linear(3, 2));
  for (auto& parameter : model->parameters()) torch::nn::init::uniform_(parameter, -1, 1);
  return model;
}

struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& initial) : weight(register_parameter("weight", initial)) {}
  at::Tensor weight;
};
TORCH_MODULE(Head);

// A language model whose head is its embedding.
struct TiedModel : torch::nn::Module {
  explicit TiedModel(bool tied = true)
      : embedding(5, 4), head(tied ? embedding->weight : torch::rand({5, 4})) {
    register_module("embedding", embedding);
    register_module("head", head);
  }
  torch::nn::Embedding embedding;
  Head head;
};

class Modules : public Files {
 protected:
  static void expect_equal(const torch::nn::Module& found, const torch::nn::Module& expected) {
    const auto tensors = tensors_of(expected);
    for (const auto& [name, tensor] : tensors_of(found)) expect_same(tensor, tensors.at(name), name);
  }
  static std::string refusal_of(torch::nn::Module& module, const std::filesystem::path& path,
                                const LoadOptions& options = {}) {
    const auto error =
        weft::test::error_of([&] { return load_into(module, *open_source(path), options), 0; });
    if (!error) return "(no error)";
    EXPECT_EQ(error->kind(), rpc::ErrorKind::invalid_argument) << error->what();
    return error->what();
  }
};

TEST_F(Modules, AreSavedAndLoaded) {
  auto model = mlp();
  model->forward(torch::ones({2, 4}));  // changes the buffers
  for (const char* name : {"file.safetensors", "file.pt", "folder"}) {
    save(*model, *create_sink(path(name)), {.notes = {{"step", "3"}}});
    auto other = mlp();
    const LoadReport report = load_into(*other, *open_source(path(name)));
    EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
    expect_equal(*other, *model);
    EXPECT_TRUE(other->parameters()[0].requires_grad() && other->parameters()[0].is_leaf());
  }
  EXPECT_EQ(open_source(path("file.safetensors"))->notes().at("step"), "3");
}

TEST_F(Modules, HaveOtherNamesInTheFile) {
  auto model = mlp();
  save(*model, *create_sink(path("file.safetensors")),
       {.names = prefixes({{"0.", "model.first."}, {"", "model."}})});
  EXPECT_TRUE(open_source(path("file.safetensors"))->tensors().contains("model.first.weight"));
  EXPECT_TRUE(open_source(path("file.safetensors"))->tensors().contains("model.1.running_mean"));
  auto other = mlp();
  load_into(*other, *open_source(path("file.safetensors")),
            {.names = prefixes({{"model.first.", "0."}, {"model.", ""}})});
  expect_equal(*other, *model);

  auto linear = torch::nn::Linear(4, 3);
  load_into(*linear, *open_source(path("file.safetensors")), {.names = [](const std::string& name) {
    return name.starts_with("model.first.") ? name.substr(12) : "";
  }});
  EXPECT_TRUE(linear->weight.equal(model->parameters()[0]));
  load_into(*linear, *open_source(path("file.safetensors")),
            {.names = exact_names({{"model.first.weight", "weight"}, {"model.first.bias", "bias"}}),
             .strict = false});
  EXPECT_EQ(weft::test::kind_of([&] {
              return save(*model, *create_sink(path("x.pt")), {.names = [](const auto&) { return "x"; }}), 0;
            }),
            rpc::ErrorKind::invalid_argument);
}

TEST_F(Modules, StrictListsAllThatDoesNotFit) {
  const auto sink = create_sink(path("file.pt"));
  const std::map<std::string, at::Tensor> tensors{
      {"weight", torch::ones({3, 4})}, {"more", torch::ones({1})}, {"other", torch::ones({1})}};
  sink->declare(forms_of(tensors));
  for (const auto& [name, tensor] : tensors) sink->write(name, tensor);
  sink->finish();
  auto linear = torch::nn::Linear(5, 3);
  const at::Tensor before = linear->weight.detach().clone();
  const std::string text = refusal_of(*linear, path("file.pt"));
  for (const char* part :
       {"missing in the file: bias", "unexpected, not in the module: more, other",
        "of another shape: weight: float32 [3, 4] in the file, float32 [3, 5] in the module"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
  EXPECT_TRUE(linear->weight.equal(before));
  EXPECT_NE(refusal_of(*linear, path("file.pt"), {.strict = false}).find("of another shape"),
            std::string::npos);

  auto right = torch::nn::Linear(4, 3);
  const at::Tensor bias = right->bias.detach().clone();
  const LoadReport report = load_into(*right, *open_source(path("file.pt")), {.strict = false});
  EXPECT_EQ(report.missing, std::vector<std::string>{"bias"});
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"more", "other"}));
  EXPECT_TRUE(right->weight.equal(torch::ones({3, 4})) && right->bias.equal(bias));
  EXPECT_NE(refusal_of(*right, path("file.pt"), {.names = [](const auto&) { return "weight"; }})
                .find("twice: weight: 'more' and"),
            std::string::npos);
}

TEST_F(Modules, ConvertDtypesOnRequest) {
  auto model = mlp();
  save(*model, *create_sink(path("file.safetensors")), {.dtype = at::kBFloat16});
  const auto source = open_source(path("file.safetensors"));
  EXPECT_EQ(source->form("0.weight").dtype, at::kBFloat16);
  EXPECT_EQ(source->form("1.num_batches_tracked").dtype, at::kLong);
  auto other = mlp();
  EXPECT_NE(refusal_of(*other, path("file.safetensors"))
                .find("of another dtype (LoadOptions::convert): 0.bias: bfloat16 [3]"),
            std::string::npos);
  load_into(*other, *source, {.convert = true});
  EXPECT_TRUE(other->parameters()[0].equal(model->parameters()[0].to(at::kBFloat16).to(at::kFloat)));
}

TEST_F(Modules, HaveTiedParameters) {
  TiedModel tied;
  for (const char* name : {"file.safetensors", "file.pt"}) {
    save(tied, *create_sink(path(name)));
    TiedModel other;
    load_into(other, *open_source(path(name)));
    expect_equal(other, tied);
    EXPECT_TRUE(other.head->weight.is_same(other.embedding->weight));
    TiedModel separate(false);
    load_into(separate, *open_source(path(name)));
    expect_equal(separate, tied);
  }
  // A file that has one of the names, as transformers writes it, or both with the same values.
  TiedModel separate(false);
  save(separate, *create_sink(path("one.pt")),
       {.names = [](const auto& name) { return name == "head.weight" ? "" : name; }});
  TiedModel other;
  load_into(other, *open_source(path("one.pt")));
  EXPECT_TRUE(other.head->weight.equal(separate.embedding->weight));
  EXPECT_NE(refusal_of(separate, path("one.pt")).find("missing in the file: head.weight"), std::string::npos);
  save(separate, *create_sink(path("both.safetensors")));
  EXPECT_NE(refusal_of(other, path("both.safetensors"))
                .find("with other values in the file: head.weight and embedding.weight"),
            std::string::npos);
  {
    torch::NoGradGuard no_grad;
    separate.head->weight.copy_(separate.embedding->weight);
  }
  save(separate, *create_sink(path("both.safetensors")));
  load_into(other, *open_source(path("both.safetensors")));
}

TEST_F(Modules, HaveTiedParametersThatCannotBeCompared) {
  for (const at::Tensor& values :
       {torch::full({5, 4}, std::numeric_limits<float>::quiet_NaN()), known(at::kFloat8_e8m0fnu, {5, 4})}) {
    const auto sink = create_sink(path("both.safetensors"));
    const std::map<std::string, at::Tensor> both{{"one", values}, {"two", values.clone()}};
    sink->declare(forms_of(both));
    for (const auto& [name, tensor] : both) sink->write(name, tensor);
    sink->finish();
    torch::nn::Module module;
    const at::Tensor tied =
        module.register_buffer("one", at::zeros_like(values.to(at::kFloat)).to(values.scalar_type()));
    module.register_buffer("two", tied);
    load_into(module, *open_source(path("both.safetensors")));
    expect_same(tied, values, "tied");
  }
}

TEST_F(Modules, ConvertTwoDtypesOfOneMemory) {
  torch::nn::Module module;
  const at::Tensor one = module.register_buffer("one", torch::arange(1, 5, at::kFloat)),
                   other = module.register_buffer("other", one.view(at::kBFloat16));
  save(module, *create_sink(path("file.pt")), {.dtype = at::kHalf});
  const auto source = open_source(path("file.pt"));
  expect_same(source->view("one"), one.to(at::kHalf), "one");
  expect_same(source->view("other"), other.to(at::kHalf), "other");
}

TEST_F(Modules, OnTheMetaDeviceAreRefused) {
  Head head(torch::ones({3, 4})), meta(torch::empty({3, 4}, at::kMeta));
  save(*head, *create_sink(path("file.pt")));
  EXPECT_NE(refusal_of(*meta, path("file.pt")).find("without memory (InitialValues::materialize()): weight"),
            std::string::npos);
  EXPECT_EQ(weft::test::kind_of([&] { return save(*meta, *create_sink(path("meta.pt"))), 0; }),
            rpc::ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::weights::module_test
