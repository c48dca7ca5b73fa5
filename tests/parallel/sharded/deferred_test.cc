// A FullyShardedDataParallel of a module that weights::deferred() has constructed.
#include <weft/parallel/sharded/checkpoint/weights.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>
#include <weft/parallel/weights/deferred.h>

#include "tests/parallel/sharded/models.h"
#include "tests/support/counting_allocator.h"

namespace weft::sharded::deferred_test {
namespace {

using namespace testing;

std::mutex seeding;  // ranks share the process's generator

// Draws from the default generator. Constructed with weights::deferred() unless `is_whole`.
template <class Make>
auto seeded(std::uint64_t seed, bool is_whole, Make make) {
  const std::lock_guard lock(seeding);
  torch::manual_seed(seed);
  using Made = decltype(make());
  if (is_whole) return std::pair<Made, std::shared_ptr<weights::InitialValues>>(make(), nullptr);
  auto [made, values] = weights::deferred(make);
  return std::pair<Made, std::shared_ptr<weights::InitialValues>>(std::move(made), std::move(values));
}

// Model without its own seed, with buffers, and with a parameter that is ignored.
struct Drawn : torch::nn::Module {
  explicit Drawn(at::ScalarType dtype = at::kDouble) {
    stem = register_module("stem", torch::nn::Linear(5, 5));
    for (int i = 0; i < 3; ++i) layers->push_back(std::make_shared<Layer>(5));
    register_module("layers", layers);
    head = register_module("head", std::make_shared<Block<Head>>(5));
    own = register_parameter("own", torch::randn({5}));
    scale = register_buffer("scale", torch::rand({5}).add(torch::arange(5)));
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(layers->forward(stem(x) * scale + own), true);
  }
  torch::nn::Linear stem{nullptr};
  torch::nn::Sequential layers;
  std::shared_ptr<Block<Head>> head;
  at::Tensor own, scale;
};

class DeferredModules : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DeferredModules, ::testing::Values(1, 2, 4),
                         ::testing::PrintToStringParamName());

TEST_P(DeferredModules, TrainLikeWholeOnes) {
  for (const char* block : {"", "layers.*"}) {
    std::map<bool, std::vector<at::Tensor>> losses;
    std::mutex mutex;
    for (const bool is_whole : {true, false}) {
      on_ranks(GetParam(), [&](const Group& group) {
        // Each rank has another seed; the values are those of rank 0, also of the ignored parameter, which is
        // broadcast by the test.
        const auto [model, values] = seeded(7 + static_cast<std::uint64_t>(group.rank()), is_whole,
                                            [] { return std::make_shared<Drawn>(); });
        if (is_whole) group.broadcast(model->own.detach(), 0).get();
        FullyShardedDataParallel<Drawn> fsdp(group, model,
                                             {.block = block, .ignored = {"own"}, .values = values});
        FullyShardedOptimizer optimizer(fsdp, torch::optim::AdamWOptions(0.05));
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          const Batch part = Batch::of_step(step, 1, 12).part(group.rank(), group.size());
          const at::Tensor loss = loss_of(fsdp.forward(part.data), part.target);
          loss.backward();
          optimizer.step();
          const std::lock_guard lock(mutex);
          if (group.rank() == 0) losses[is_whole].push_back(loss.detach());
        }
      });
    }
    for (std::size_t step = 0; step < 3; ++step)
      expect_same(losses[false][step], losses[true][step], "the loss of step " + std::to_string(step));
  }
}

TEST_P(DeferredModules, LoadWeights) {
  const Folder folder;
  const auto file = folder.path / "model.safetensors";
  const auto [whole, none] = seeded(3, true, [] { return std::make_shared<Drawn>(at::kFloat); });
  weights::save(*whole, *weights::create_sink(file));
  const auto expected = weights::tensors_of(*whole);
  on_ranks(GetParam(), [&](const Group& group) {
    const auto [model, values] = seeded(8, false, [] { return std::make_shared<Drawn>(at::kFloat); });
    FullyShardedDataParallel<Drawn> fsdp(group, model,
                                         {.block = "layers.*", .values = values, .initialize = false});
    for (const at::Tensor& part : fsdp.parameters()) EXPECT_FALSE(part.any().item<bool>()) << "drawn";
    SlicedState state;
    fsdp.add_to(state, "");
    load_weights(group, state, file);
    const auto gathered = fsdp.gather();
    for (const auto& [name, tensor] : weights::tensors_of(*model))
      expect_same(tensor, expected.at(name), name);
  });
}

TEST(DeferredModuleErrors, AreThoseOfAllRanks) {
  on_ranks(2, [&](const Group& group) {
    const auto [model, values] = seeded(1, group.rank() == 0, [] { return std::make_shared<Drawn>(); });
    EXPECT_NE(test::message_of([&, &model = model] {
                FullyShardedDataParallel<Drawn>(group, model);
              }).find(group.rank() == 0 ? "rank 1" : "has no memory"),
              std::string::npos);
  });
  on_ranks(2, [&](const Group& group) {
    const auto [model, values] = seeded(1, group.rank() == 0, [] { return std::make_shared<Drawn>(); });
    EXPECT_NE(test::message_of([&, &model = model, &values = values] {
                FullyShardedDataParallel<Drawn>(group, model, {.values = values});
              }).find("values deferred"),
              std::string::npos);
  });
}

// An error in the computation of the values.
struct Wrong : torch::nn::Module {
  Wrong(bool in_buffer, bool is_wrong) {
    const at::Tensor drawn = register_parameter("drawn", torch::rand({3})),
                     kept = register_buffer("kept", torch::rand({3}));
    const torch::NoGradGuard no_history;
    if (is_wrong) (in_buffer ? kept : drawn).copy_(torch::rand({4}));
  }
};

TEST(DeferredModuleErrors, InTheValuesOfOneRankAreThoseOfAllRanks) {
  for (const bool in_buffer : {true, false})
    on_ranks(2, [&](const Group& group) {
      const auto [model, values] =
          seeded(1, false, [&] { return std::make_shared<Wrong>(in_buffer, group.rank() == 1); });
      EXPECT_NE(test::message_of([&, &model = model, &values = values] {
                  FullyShardedDataParallel<Wrong>(group, model, {.values = values});
                }).find("must match the size"),
                std::string::npos);
    });
}

// Tensors of unusual forms.
struct Odd : torch::nn::Module {
  Odd() {
    const auto layer = register_module("layer", torch::nn::Linear(5, 5));
    register_parameter("none", torch::empty({0, 3}).normal_());
    register_parameter("scalar", torch::rand({}));
    register_parameter("frozen", torch::rand({7}), false);
    register_parameter("transposed", torch::rand({4, 6}).t());
    register_parameter("half", torch::rand({3}).to(at::kBFloat16));
    register_buffer("undefined", at::Tensor());
    register_buffer("no_elements", torch::zeros({0}));
    register_module("again", layer);
    const weights::NotDeferred with_memory;
    register_parameter("real", torch::ones({3}));
  }
};

TEST(DeferredModules, MayHaveUnusualTensors) {
  const Folder folder;
  const auto file = folder.path / "model.safetensors", again = folder.path / "again.safetensors";
  const auto [whole, none] = seeded(3, true, [] { return std::make_shared<Odd>(); });
  weights::save(*whole, *weights::create_sink(file));
  const auto expected = weights::tensors_of(*whole);
  for (const std::vector<std::string>& ignored :
       {std::vector<std::string>{}, {"again.*"}, {"layer.*", "scalar", "none"}})
    for (const bool initialize : {true, false})
      on_ranks(2, [&](const Group& group) {
        const auto [model, values] = seeded(3, false, [] { return std::make_shared<Odd>(); });
        FullyShardedDataParallel<Odd> fsdp(group, model,
                                           {.ignored = ignored, .values = values, .initialize = initialize});
        SlicedState state;
        fsdp.add_to(state, "");
        if (!initialize) load_weights(group, state, file);
        save_weights(group, state, again);
        const auto gathered = fsdp.gather();
        for (const auto& [name, tensor] : weights::tensors_of(*model))
          expect_same(tensor.detach(), expected.at(name).detach(), name);
        const auto saved = weights::open_source(again);
        for (const auto& [name, tensor] : expected)
          if (tensor.numel() > 0) expect_same(saved->view(name), tensor.detach(), name);
      });
}

// Layers that are split over a tensor group draw the whole weights, and keep their parts.
struct Split : torch::nn::Module {
  explicit Split(const Group& group) {
    using namespace tensor_parallel;
    tokens = register_module("tokens", VocabularyParallelEmbedding(group, 11, 8));
    up = register_module("up", ColumnParallelLinear(group, 8, 16, ColumnParallelOptions{.blocks = 2}));
    down = register_module("down", RowParallelLinear(group, 8, 8));
  }
  at::Tensor forward(const at::Tensor& ids) {
    const auto parts = up(tokens(ids)).chunk(2, -1);
    return down(torch::sigmoid(parts[0]) * parts[1]);
  }
  tensor_parallel::VocabularyParallelEmbedding tokens{nullptr};
  tensor_parallel::ColumnParallelLinear up{nullptr};
  tensor_parallel::RowParallelLinear down{nullptr};
};

TEST(DeferredSplitModules, HaveThePartsOfTheWholeModel) {
  const Folder folder;
  const auto expected = folder.path / "expected.safetensors", file = folder.path / "file.safetensors";
  // The constructors wait for each other, so ranks cannot take turns: the seed is set once.
  torch::manual_seed(5);
  on_ranks(1, [&](const Group& world) { weights::save(Split(world), *weights::create_sink(expected)); });
  for (const int data : {1, 2, 4}) {
    torch::manual_seed(5);
    on_ranks(4, [&](const Group& world) {
      const auto mesh = DeviceMesh::create(world, {{"data", data}, {"tensor", 4 / data}}).get();
      const auto [model, values] =
          weights::deferred([&] { return std::make_shared<Split>(mesh.group("tensor")); });
      FullyShardedDataParallel<Split> fsdp(mesh.group("data"), model, {.values = values});
      SlicedState state;
      fsdp.add_to(state, "");
      save_weights(world, state, file);
    });
    const auto a = weights::open_source(expected), b = weights::open_source(file);
    for (const auto& [name, form] : a->tensors()) expect_same(b->view(name), a->view(name), name);
  }
}

}  // namespace
}  // namespace weft::sharded::deferred_test
