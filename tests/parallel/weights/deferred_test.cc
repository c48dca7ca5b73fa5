// deferred(): the values and the memory of modules that are constructed without memory.
#include <weft/parallel/weights/deferred.h>
#include <weft/parallel/weights/module.h>

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>

#include "tests/support/counting_allocator.h"
#include "tests/support/errors.h"
#include "tests/support/torch_python.h"

namespace weft::weights::deferred_test {
namespace {

using test::kind_of;

constexpr std::uint64_t seed = 7;

// Initializers and buffers of many kinds.
struct Various : torch::nn::Module {
  explicit Various(std::optional<at::Generator> generator = {}) {
    namespace nn = torch::nn;
    register_module("linear", nn::Linear(6, 5));
    register_module("convolution", nn::Conv2d(nn::Conv2dOptions(3, 4, 3)));
    register_module("embedding", nn::Embedding(nn::EmbeddingOptions(9, 4).padding_idx(2)));
    register_module("lstm", nn::LSTM(nn::LSTMOptions(4, 3).num_layers(2).bidirectional(true)));
    register_module("batch_norm", nn::BatchNorm2d(4));
    register_module("layer_norm", nn::LayerNorm(nn::LayerNormOptions({5})));
    register_module("attention", nn::MultiheadAttention(nn::MultiheadAttentionOptions(8, 2)));
    register_module("transformer", nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(8, 2)));
    const auto parameter = [&](const char* name, at::IntArrayRef sizes) {
      return register_parameter(name, torch::empty(sizes));
    };
    nn::init::orthogonal_(parameter("orthogonal", {5, 7}), 2);
    nn::init::xavier_normal_(parameter("xavier", {4, 6}));
    nn::init::sparse_(parameter("sparse", {6, 4}), 0.5);
    nn::init::eye_(parameter("eye", {4, 4}));
    register_parameter("drawn", torch::randn({3, 4}) * 0.5 + torch::rand({4}));
    register_parameter("permutation", torch::randperm(11).to(torch::kFloat));
    register_parameter("generated", torch::empty({8}).normal_(0, 2, std::move(generator)));
    const at::Tensor angles =
        torch::outer(torch::arange(6, torch::kFloat), torch::pow(100, -torch::arange(4, torch::kFloat) / 4));
    register_buffer("angles", torch::cat({angles.cos(), angles.sin()}, 1).t().contiguous());
    register_buffer("list", torch::tensor({1.5, 2.5, 4.5}));
    register_buffer("scalar", torch::tensor(3));
    const at::Tensor table = register_buffer("table", torch::zeros({4, 4}));
    table.slice(0, 1, 3).narrow(1, 1, 2).fill_(2).mul_(1.5);
    table.index_put_({torch::arange(2)}, torch::ones({4}));
    const torch::NoGradGuard no_history;
    this->parameters().front().mul_(0.5);
    to(torch::kDouble);
  }
};

// Of an error of any type.
template <class F>
std::string text_of(F f) {
  try {
    f();
    return "no error";
  } catch (const std::exception& error) {
    return error.what();
  }
}

template <class Module>
void expect_equal(const Module& one, const Module& other) {
  const auto a = tensors_of(one), b = tensors_of(other);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    const at::Tensor& same = b.at(name);
    EXPECT_EQ(tensor.strides(), same.strides()) << name;
    EXPECT_EQ(tensor.requires_grad(), same.requires_grad()) << name;
    EXPECT_TRUE(tensor.dtype() == same.dtype() && at::equal(tensor, same)) << name;
  }
}

TEST(Deferred, HasTheValuesOfTheConstructor) {
  torch::manual_seed(seed);
  const Various whole;
  torch::manual_seed(seed);
  const at::Tensor before = at::detail::getDefaultCPUGenerator().get_state();
  const auto [model, values] = deferred([] { return std::make_shared<Various>(); });
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), before)) << "nothing is drawn";
  for (const auto& [name, tensor] : tensors_of(*model)) EXPECT_TRUE(values->are_of(tensor)) << name;
  EXPECT_NE(text_of([&, &model = model] { model->parameters()[0].sum(); }).find("weights::deferred"),
            std::string::npos);
  torch::manual_seed(seed + 1);
  const at::Tensor later = at::detail::getDefaultCPUGenerator().get_state();
  values->materialize(*model);
  EXPECT_TRUE(at::equal(at::detail::getDefaultCPUGenerator().get_state(), later)) << "it is restored";
  expect_equal(whole, *model);
}

using Tensors = std::vector<at::Tensor>;

// The tensors of make(), which runs without and with deferred(). Calls before_values() in between.
template <class Make>
void expect_equal_tensors(Make make, const std::function<void()>& before_values = [] {}) {
  torch::manual_seed(seed);
  const Tensors whole = make();
  torch::manual_seed(seed);
  const auto [made, values] = deferred(make);
  before_values();
  values->materialize(made);
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_EQ(whole[i].scalar_type(), made[i].scalar_type()) << i;
    EXPECT_TRUE(at::equal(whole[i], made[i])) << i << ": " << whole[i] << made[i];
    EXPECT_FALSE(values->are_of(made[i])) << i;
  }
}

TEST(Deferred, HasTheValuesOfLazyConjugates) {
  expect_equal_tensors([] {
    const at::Tensor unit = torch::polar(torch::ones({4}), torch::rand({4})), other = unit * 2;
    other.conj().mul_(c10::complex<double>(0, 1));
    return Tensors{unit.conj().mul(unit), torch::imag(unit.conj()) + 1, unit.conj().resolve_conj(), other};
  });
}

TEST(Deferred, HasTensorsWithoutElements) {
  expect_equal_tensors([] {
    const at::Tensor none = torch::empty({0, 3}), some = torch::rand({4, 3});
    torch::nn::init::normal_(none);
    some.slice(0, 2, 2).normal_();
    return Tensors{none, some, torch::cat({none, some}), torch::zeros({0})};
  });
}

TEST(Deferred, ResizesOutputs) {
  expect_equal_tensors([] {
    at::Tensor product = torch::empty({0}), joined = torch::empty({2}), same = torch::empty({3});
    torch::mul_out(product, torch::rand({3, 2}), torch::rand({2}));
    torch::cat_out(joined, {product.flatten(), torch::rand({2})});
    torch::add_out(same, same.fill_(2), torch::rand({3}));
    return Tensors{product + 1, joined, same};
  });
}

// The program may restore the default dtype, and use autocast, after it has constructed the module.
TEST(Deferred, HasTheTypesOfTheConstructor) {
  const auto set = [](at::ScalarType type) { torch::set_default_dtype(c10::scalarTypeToTypeMeta(type)); };
  set(at::kDouble);
  const auto back = [&] { set(at::kFloat); };
  expect_equal_tensors(
      [&] {
        set(at::kDouble);
        const torch::nn::Linear linear(3, 3);
        return Tensors{linear->weight.detach(), torch::rand({3}), torch::arange(0, 1, 0.25)};
      },
      back);
  set(at::kDouble);
  const auto [made, values] = deferred([] { return torch::arange(3) / 7; });
  set(at::kFloat);
  EXPECT_EQ(kind_of([&, &values = values, &made = made] { values->materialize(Tensors{made}); }),
            rpc::ErrorKind::failed_precondition);
  expect_equal_tensors(
      [] {
        at::autocast::set_autocast_enabled(at::kCPU, false);
        const at::Tensor drawn = torch::rand({3, 3});
        return Tensors{drawn.matmul(drawn)};
      },
      [] { at::autocast::set_autocast_enabled(at::kCPU, true); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
}

TEST(Deferred, HasTheValuesOfModules) {
  using namespace torch::nn;
  const auto expect_same = [](auto make) {
    expect_equal_tensors([&] {
      Tensors tensors;
      for (const auto& [name, tensor] : tensors_of(*make().ptr())) tensors.push_back(tensor.detach());
      return tensors;
    });
  };
  expect_same([] { return Bilinear(3, 4, 5); });
  expect_same([] { return EmbeddingBag(EmbeddingBagOptions(5, 4).padding_idx(1)); });
  expect_same([] { return ConvTranspose2d(ConvTranspose2dOptions(4, 4, 3)); });
  expect_same([] { return InstanceNorm2d(InstanceNorm2dOptions(4).affine(true).track_running_stats(true)); });
  expect_same([] { return BatchNorm1d(BatchNorm1dOptions(4).track_running_stats(false)); });
  expect_same([] { return GRU(GRUOptions(3, 4).bidirectional(true)); });
  expect_same([] { return LSTMCell(3, 4); });
  expect_same(
      [] { return MultiheadAttention(MultiheadAttentionOptions(8, 2).kdim(3).vdim(5).add_bias_kv(true)); });
  expect_same([] { return Transformer(TransformerOptions(8, 2, 2, 2)); });  // clones its layers
  expect_same([] { return AdaptiveLogSoftmaxWithLoss(AdaptiveLogSoftmaxWithLossOptions(64, 12, {4, 8})); });
}

TEST(Deferred, HasTheValuesOfOneSubmodule) {
  torch::manual_seed(seed);
  const auto whole = std::make_shared<Various>();
  torch::manual_seed(seed);
  const auto [model, values] = deferred([] { return std::make_shared<Various>(); });
  const auto part = model->named_modules()["transformer"];
  values->materialize(*part);
  expect_equal<torch::nn::Module>(*whole->named_modules()["transformer"], *part);
  for (const auto& [name, tensor] : tensors_of(*model))
    EXPECT_EQ(values->are_of(tensor), !name.starts_with("transformer")) << name;
  values->materialize(*model, /*initialize=*/false);
  for (const auto& [name, tensor] : tensors_of(*model)) EXPECT_FALSE(values->are_of(tensor)) << name;
}

TEST(Deferred, RepeatsAGeneratorOfTheProgram) {
  const auto generator = [] { return at::detail::createCPUGenerator(seed); };
  const Various whole(generator());
  const auto own = generator();
  const auto [model, values] = deferred([&own] { return std::make_shared<Various>(own); });
  const auto wanted = tensors_of(*model).at("generated"), expected = tensors_of(whole).at("generated");
  for (int i = 0; i < 2; ++i) {
    bool taken = false;
    values->compute({wanted}, [&](std::size_t, const at::Tensor& drawn) {
      taken = true;
      EXPECT_TRUE(at::equal(drawn, expected)) << i;
    });
    EXPECT_TRUE(taken);
  }
}

struct Tied : torch::nn::Module {
  Tied() : first(3, 3), second(first) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::nn::Linear first, second;
};

TEST(Deferred, KeepsTiedParametersTied) {
  torch::manual_seed(seed);
  const Tied whole;
  torch::manual_seed(seed);
  const auto [model, values] = deferred([] { return std::make_shared<Tied>(); });
  values->materialize(*model);
  expect_equal(whole, *model);
  EXPECT_TRUE(model->first->weight.is_alias_of(model->second->weight));
}

TEST(Deferred, NeedsTheMemoryOfOneParameterAtATime) {
  constexpr std::int64_t width = 256;
  constexpr std::size_t one = width * width * sizeof(float);
  test::CountingAllocator allocator;
  const auto [model, values] = deferred([&] {
    torch::nn::Sequential layers;
    for (int i = 0; i < 20; ++i) layers->push_back(torch::nn::Linear(width, width));
    return layers;
  });
  EXPECT_LT(allocator.take_peak(), one / 4);
  double sum = 0;
  const auto& all = model->parameters();
  values->compute(all, [&](std::size_t, const at::Tensor& drawn) { sum += drawn.sum().item<double>(); });
  EXPECT_LT(allocator.take_peak(), one * 5 / 4);
  EXPECT_NE(sum, 0);
  values->materialize(*model->ptr(19));
  EXPECT_LT(allocator.take_peak(), one * 9 / 4);
}

TEST(Deferred, ComputesElementsThatTheConstructorReads) {
  const auto make = [] {
    at::Tensor drawn = torch::rand({9});
    drawn.mul_(drawn.sum().item<float>());
    return torch::cat({drawn, torch::nonzero(drawn > 1).flatten().to(torch::kFloat)});
  };
  torch::manual_seed(seed);
  const at::Tensor whole = make();
  torch::manual_seed(seed);
  const auto [made, values] = deferred(make);
  values->compute({made}, [&](std::size_t, const at::Tensor& same) { EXPECT_TRUE(at::equal(same, whole)); });
}

TEST(Deferred, RefusesAccessToMemory) {
  const auto refused = [](auto make) { return text_of([&] { deferred([&] { return (make(), 0); }); }); };
  EXPECT_NE(refused([] { *torch::ones({2}).data_ptr<float>() = 3; }).find("weights::deferred() has"),
            std::string::npos);
  const at::Tensor real = torch::zeros({2});
  EXPECT_NE(refused([&] { real.copy_(torch::ones({2})); }).find("a tensor with memory"), std::string::npos);
  EXPECT_TRUE(at::equal(real, at::zeros({2})));
  EXPECT_EQ(kind_of([&] { deferred([] { return deferred([] { return 0; }); }); }),
            rpc::ErrorKind::failed_precondition);
  const auto [copy, values] = deferred([&] {
    const NotDeferred with_memory;
    EXPECT_EQ(torch::ones({2}).sum().item<float>(), 2);
    return 0;
  });
  const auto [made, later] = deferred([&] { return torch::ones({2}) + real; });
  EXPECT_EQ(kind_of([&, &values = values, &made = made] { values->compute({made}, [](auto...) {}); }),
            rpc::ErrorKind::invalid_argument);
  EXPECT_TRUE(torch::ones({2}).sum().item<float>() == 2) << "nothing is recorded afterwards";
}

// load_into() needs memory, and a name that the file lacks keeps its initial values.
TEST(Deferred, LoadsAFile) {
  const test::TemporaryFolder folder;
  const auto file = std::filesystem::path(folder.path()) / "model.safetensors";
  torch::manual_seed(seed);
  const Various whole;
  save(whole, *create_sink(file));
  const auto [model, values] = deferred([] { return std::make_shared<Various>(); });
  EXPECT_NE(text_of([&, &model = model] { load_into(*model, *open_source(file)); }).find("without memory"),
            std::string::npos);
  values->materialize(*model, /*initialize=*/false);
  load_into(*model, *open_source(file));
  expect_equal(whole, *model);
}

}  // namespace
}  // namespace weft::weights::deferred_test
