// FullyShardedDataParallel against one process with the batch of all ranks.
#include <weft/parallel/sharded/internal/shard_layout.h>

#include <limits>
#include <set>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_test {
namespace {

using namespace testing;

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
const std::map<std::string, MakeOptimizer> optimizers{
    {"sgd",
     [](std::vector<at::Tensor> parameters) {
       return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                  torch::optim::SGDOptions(0.1).momentum(0.9));
     }},
    {"adamw", [](std::vector<at::Tensor> parameters) {
       return std::make_unique<torch::optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
     }}};

struct Trained {
  std::vector<at::Tensor> values;
  std::vector<double> losses;  // of the last backward in each step
};

struct Training {
  int ranks = 2;
  std::string optimizer = "sgd";
  int steps = 4, backwards = 1;     // backwards: in each step
  std::set<int> without_sync = {};  // the backwards that run without sync
  double max_norm = std::numeric_limits<double>::infinity();
  std::function<void(Model&)> adjust = [](Model&) {};
  std::function<bool(int step, int rank)> with_extra = [](int, int) { return true; };
};

// Trains in one process with the batches of all ranks.
Trained alone(const Training& training) {
  Model model;
  training.adjust(model);
  const auto optimizer = optimizers.at(training.optimizer)(model.parameters());
  Trained trained;
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    for (int i = 0; i < training.backwards; ++i) {
      const Batch batch = Batch::of_step(10 * step + i, training.ranks);
      at::Tensor loss;
      for (int rank = 0; rank < training.ranks; ++rank) {
        const Batch part = batch.part(rank, training.ranks);
        const at::Tensor own =
            loss_of(model.forward(part.data, training.with_extra(step, rank)), part.target);
        loss = loss.defined() ? loss + own : own;
      }
      loss = loss / training.ranks;
      loss.backward();
      if (i + 1 == training.backwards) trained.losses.push_back(loss.item<double>());
    }
    if (training.max_norm != std::numeric_limits<double>::infinity())
      torch::nn::utils::clip_grad_norm_(model.parameters(), training.max_norm);
    optimizer->step();
  }
  trained.values = values_of(model);
  return trained;
}

Trained sharded(const Group& group, const Training& training, const Options& options, int ranks = 0,
                int first_rank = 0) {
  if (ranks == 0) ranks = group.size();
  const auto model = std::make_shared<Model>();
  training.adjust(*model);
  FullyShardedDataParallel fsdp{group, model, options};
  const auto optimizer = optimizers.at(training.optimizer)(fsdp.parameters());
  Trained trained;
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    const int rank = first_rank + group.rank();
    for (int i = 0; i < training.backwards; ++i) {
      const Batch part = Batch::of_step(10 * step + i, ranks).part(rank, ranks);
      const auto backward = [&] {
        const at::Tensor loss =
            loss_of(fsdp.forward(part.data, training.with_extra(step, rank)), part.target);
        loss.backward();
        return loss;
      };
      const auto without_sync = [&] {
        const auto guard = fsdp.no_sync();
        return backward();
      };
      const at::Tensor loss = training.without_sync.contains(i) ? without_sync() : backward();
      if (i + 1 == training.backwards) trained.losses.push_back(loss.item<double>());
    }
    if (training.max_norm != std::numeric_limits<double>::infinity()) fsdp.clip_grad_norm(training.max_norm);
    optimizer->step();
  }
  const auto whole = fsdp.gather();
  trained.values = values_of(*model);
  return trained;
}

void expect_equal_training(const Training& training, const Options& options,
                           Backend backend = Backend::messages) {
  const Trained expected = alone(training);
  on_ranks(training.ranks, backend, [&](const Group& group) {
    expect_close(sharded(group, training, options).values, expected.values);
  });
}

class FullySharded : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  const int ranks = std::get<0>(GetParam());
  const Options options{.block = "layers.*", .reshard_after_forward = std::get<1>(GetParam())};
};
INSTANTIATE_TEST_SUITE_P(Ranks, FullySharded,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::Bool()));

TEST_P(FullySharded, EqualsOneProcess) {
  for (const auto& [name, make] : optimizers)
    for (const Backend backend : {Backend::messages, Backend::memory}) {
      SCOPED_TRACE(name);
      expect_equal_training({.ranks = ranks, .optimizer = name}, options, backend);
    }
}

TEST_P(FullySharded, BackwardsOfAStepAddUp) {
  expect_equal_training({.ranks = ranks, .backwards = 3}, options);
}

TEST_P(FullySharded, BackwardsWithoutSyncAreReducedWithTheNextOne) {
  const auto with_extra = [](int step, int rank) { return step % 2 == 0 && rank != 1; };
  for (const std::set<int>& without_sync : {std::set{0, 1, 2}, std::set{0, 2}, std::set{1, 2}})
    expect_equal_training(
        {.ranks = ranks, .backwards = 4, .without_sync = without_sync, .with_extra = with_extra}, options);
}

TEST_P(FullySharded, ClipsByTheNormOfAllRanks) {
  expect_equal_training({.ranks = ranks, .max_norm = 0.05}, options);
}

TEST_P(FullySharded, FrozenParametersKeepTheirValues) {
  for (const int kind : {0, 1, 2}) {
    SCOPED_TRACE(kind);
    const auto adjust = [kind](Model& model) {
      if (kind == 2) model.stem->weight.requires_grad_(false);
      for (const auto& entry : model.layers->named_children()) {
        const auto layer = std::dynamic_pointer_cast<Layer>(entry.value());
        if (kind == 0)  // backward uses it after it has computed the last gradient of its block
          for (at::Tensor& parameter : layer->norm->parameters()) parameter.requires_grad_(false);
        if (kind == 1) layer->linear->weight.requires_grad_(false);
        if (kind == 2 && entry.key() == "1")
          for (at::Tensor& parameter : layer->parameters()) parameter.requires_grad_(false);  // a whole block
      }
    };
    expect_equal_training({.ranks = ranks, .adjust = adjust}, options);
  }
}

// Without a gradient, momentum does not change a parameter.
TEST_P(FullySharded, AParameterThatNoRankReachesKeepsItsValue) {
  for (const int kind : {0, 1}) {
    SCOPED_TRACE(kind);
    const auto with_extra = [kind](int step, int rank) { return kind == 0 ? step % 2 == 0 : rank % 2 == 1; };
    for (const char* optimizer : {"sgd", "adamw"})
      expect_equal_training({.ranks = ranks, .optimizer = optimizer, .with_extra = with_extra}, options);
  }
}

TEST_P(FullySharded, BlocksMayBeAnyPart) {
  for (const char* block : {"", "layers.1", "layers.[02]"})
    expect_equal_training({.ranks = ranks},
                          {.block = block, .reshard_after_forward = options.reshard_after_forward});
}

// --- Memory ---

TEST(FullyShardedMemory, IsThatOfThePartsAndTwoBlocks) {
  constexpr int ranks = 2, layers = 12;
  on_ranks(ranks, Backend::memory, [&](const Group& group) {
    const auto model = std::make_shared<Model>(layers);
    std::int64_t in_blocks = 0, others = 0;
    for (const auto& entry : model->named_parameters())
      (entry.key().starts_with("stem") ? others : in_blocks) += entry.value().numel();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    for (int step = 0; step < 3; ++step) {
      const Batch part = Batch::of_step(step, ranks).part(group.rank(), ranks);
      for (at::Tensor& parameter : fsdp.parameters()) parameter.mutable_grad().reset();
      loss_of(fsdp.forward(part.data), part.target).backward();
    }
    const auto elements = static_cast<std::int64_t>(fsdp.bytes() / sizeof(double));
    const std::int64_t blocks = layers + 1;  // and the head
    const std::int64_t block = ShardLayout(std::vector<std::int64_t>{5, 5, 25, 5}, ranks).elements();
    EXPECT_LE(elements, 2 * (blocks * block + others + 64) / ranks + 4 * block + 2 * (others + 64));
    EXPECT_GE(elements, 2 * in_blocks / ranks);
  });
}

// --- Access to parameters ---

TEST(FullyShardedParameters, AreInaccessibleOutsideOfTheirUnit) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    const at::Tensor weight = model->stem->weight;
    const auto* const impl = weight.unsafeGetTensorImpl();
    const at::Tensor view = weight.detach().t();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    EXPECT_EQ(model->stem->weight.unsafeGetTensorImpl(), impl);
    EXPECT_EQ(weight.sizes(), (at::IntArrayRef{5, 5}));
    const auto version = weight._version();
    expect_torch_error([&] { return weight.sum(); }, "parameter stem.weight is split over the ranks");
    own_loss(fsdp).backward();
    {
      const auto whole = fsdp.gather();
      expect_close(values_of(*model), values_of(Model()));
    }
    EXPECT_ANY_THROW((void)weight.sum());
    EXPECT_EQ(weight._version(), version);
    EXPECT_EQ(model->stem->weight.unsafeGetTensorImpl(), impl);
    EXPECT_FALSE(weight.grad().defined());
  });
}

TEST(FullyShardedParameters, HaveNamesWithTheirElements) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    std::map<std::string, std::int64_t> elements;
    for (const auto& entry : fsdp.named_parameters()) {
      const auto open = entry.key().find('[');
      EXPECT_EQ(entry.value().dim(), 1);
      elements[entry.key().substr(0, open)] += entry.value().numel();
    }
    const auto all = group.all_gather_object(elements).get();
    for (const auto& entry : Model().named_parameters()) {
      std::int64_t sum = 0;
      for (const auto& of_rank : all)
        if (const auto found = of_rank.find(entry.key()); found != of_rank.end()) sum += found->second;
      EXPECT_EQ(sum, entry.value().numel()) << entry.key();
    }
  });
}

TEST(FullyShardedParameters, StartWithTheValuesOfRankZero) {
  on_ranks(3, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    if (group.rank() != 0)
      for (at::Tensor& parameter : model->parameters()) parameter.detach().fill_(group.rank());
    FullyShardedDataParallel fsdp{group, model};
    const auto whole = fsdp.gather();
    expect_close(values_of(*model), values_of(Model()), 0);
  });
}

// --- Forms of a program ---

struct Rank {
  explicit Rank(const Group& group, Options options = {.block = "layers.*"})
      : model(std::make_shared<Model>()), fsdp(group, model, std::move(options)) {}
  at::Tensor loss(int step) { return own_loss(fsdp, step); }
  // Returns the gradients by name, joined from the parts of all ranks.
  std::map<std::string, at::Tensor> gradients() {
    std::map<std::string, at::Tensor> own;
    for (const auto& entry : fsdp.named_parameters())
      if (entry.value().grad().defined()) own[entry.key()] = entry.value().grad().clone();
    return own;
  }
  std::shared_ptr<Model> model;
  FullyShardedDataParallel<Model> fsdp;
};

void expect_same(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b,
                 double factor = 1) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a)
    EXPECT_TRUE(at::allclose(tensor, factor * b.at(name), 1e-10, 1e-10)) << name;
}

TEST(FullyShardedPrograms, MayEvaluateBetweenForwardAndBackward) {
  on_ranks(2, [&](const Group& group) {
    Rank plain(group), mixed(group);
    for (int step = 0; step < 2; ++step) {
      plain.loss(step).backward();
      const at::Tensor loss = mixed.loss(step);
      {
        const at::NoGradGuard no_grad;
        EXPECT_TRUE(at::equal(mixed.loss(step), loss));
      }
      loss.backward();
      expect_same(mixed.gradients(), plain.gradients());
    }
  });
}

TEST(FullyShardedPrograms, MayRunSeveralForwardsBeforeBackward) {
  on_ranks(2, [&](const Group& group) {
    Rank plain(group), mixed(group);
    plain.loss(0).backward();
    plain.loss(1).backward();
    (mixed.loss(0) + mixed.loss(1)).backward();
    expect_same(mixed.gradients(), plain.gradients());
    const at::Tensor first = mixed.loss(2), second = mixed.loss(3);
    second.backward();
    first.backward();
    plain.loss(3).backward();
    plain.loss(2).backward();
    expect_same(mixed.gradients(), plain.gradients());
  });
}

TEST(FullyShardedPrograms, MayRunBackwardTwice) {
  on_ranks(2, [&](const Group& group) {
    Rank plain(group), mixed(group);
    plain.loss(0).backward();
    const at::Tensor loss = mixed.loss(0);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    expect_same(mixed.gradients(), plain.gradients(), 2);
  });
}

TEST(FullyShardedPrograms, MayComputeGradientsOfInputs) {
  on_ranks(2, [&](const Group& group) {
    Rank rank(group);
    Batch part = Batch::of_step(0, 2).part(group.rank(), 2);
    part.data.requires_grad_();
    const at::Tensor loss = loss_of(rank.fsdp.forward(part.data), part.target);
    const at::Tensor gradient =
        torch::autograd::grad({loss}, {part.data}, {}, /*retain_graph=*/true, false, false)[0];
    EXPECT_TRUE(rank.gradients().empty());
    loss.backward();
    EXPECT_TRUE(at::allclose(part.data.grad(), gradient, 1e-10, 1e-10));
    Rank plain(group);
    plain.loss(0).backward();
    expect_same(rank.gradients(), plain.gradients());
  });
}

// With several ranks, the others may wait for this one, so its groups are aborted
// (FullyShardedChanges.AForwardThatThrowsOnOneRankFailsOnAllRanks).
TEST(FullyShardedPrograms, AForwardThatThrowsMayBeRepeatedOnOneRank) {
  on_ranks(1, [&](const Group& group) {
    Rank rank(group), plain(group);
    EXPECT_ANY_THROW(rank.fsdp.forward(at::ones({2, 7}, at::kDouble)));
    rank.loss(0).backward();
    plain.loss(0).backward();
    expect_same(rank.gradients(), plain.gradients());
  });
}

TEST(FullyShardedPrograms, ABackwardThatFailsIsNamedOnAllRanks) {
  on_ranks(2, [&](const Group& group) {
    Rank rank(group);
    at::Tensor loss = rank.loss(0);
    if (group.rank() == 1) {
      rank.model->stem->weight.register_hook([](const at::Tensor& gradient) -> at::Tensor {
        if (gradient.defined()) throw std::runtime_error("no luck");
        return gradient;
      });
      EXPECT_ANY_THROW(loss.backward());
      EXPECT_ANY_THROW(rank.loss(1));
      return;
    }
    const auto error = error_of([&] {
      for (int step = 1;; ++step) {
        loss.backward();
        loss = rank.loss(step);
      }
    });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::aborted) << error->what();
  });
}

// A block that is used twice, and a layer that two blocks share.
struct Tied : torch::nn::Module {
  explicit Tied(const torch::nn::Linear& shared) : linear(register_module("linear", shared)) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
  }
  at::Tensor forward(const at::Tensor& x) { return torch::tanh(linear(norm(x))); }
  torch::nn::Linear linear;
  torch::nn::LayerNorm norm{nullptr};
};
struct Shared : torch::nn::Module {
  Shared() {
    const torch::nn::Linear linear(5, 5);
    first = register_module("first", std::make_shared<Block<Tied>>(linear));
    second = register_module("second", std::make_shared<Block<Tied>>(linear));
    for (const at::Tensor& parameter : parameters())
      parameter.set_data(at::linspace(-1, 1, parameter.numel(), at::kDouble).sin().view(parameter.sizes()));
  }
  at::Tensor forward(const at::Tensor& x) { return first->forward(second->forward(first->forward(x))); }
  std::shared_ptr<Block<Tied>> first, second;
};

TEST(FullyShardedPrograms, MayUseABlockTwiceAndShareLayers) {
  expect_equal_gradients(
      [] { return std::make_shared<Shared>(); },
      [](auto& module, const Batch& part) { return module.forward(part.data).square().mean(); });
}

TEST(FullyShardedPrograms, TheModuleIsRestoredByItsDestructor) {
  on_ranks(1, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    const auto entry = model->layers->ptr(0);
    {
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
      EXPECT_NE(model->layers->ptr(0), entry);
      EXPECT_EQ(model->layers->named_children()["0"], entry);
    }
    EXPECT_EQ(model->layers->ptr(0), entry);
  });
}

// --- Refusals ---

TEST(FullyShardedRefusals, NameTheBlock) {
  on_ranks(1, [&](const Group& group) {
    const auto expect_refused = [&](const std::shared_ptr<torch::nn::Module>& module, const char* block,
                                    const char* text) {
      expect_error([&] { ShardedModule(group, module, {.block = block}); }, ErrorKind::invalid_argument,
                   text);
    };
    const auto model = std::make_shared<Model>();
    expect_refused(model, "stem", "the block stem is a torch::nn::LinearImpl");
    expect_refused(model, "layer.*", "no module matches the block \"layer.*\"");
    struct Nested : torch::nn::Module {
      Nested() { register_module("inner", std::make_shared<Block<Layer>>(5)); }
      at::Tensor forward(const at::Tensor& x) { return x; }
    };
    struct Outer : torch::nn::Module {
      Outer() { register_module("all", torch::nn::Sequential(std::make_shared<Nested>())); }
    };
    expect_refused(std::make_shared<Outer>(), "all.0", "is within the block all.0");
    expect_refused(std::make_shared<torch::nn::ReLUImpl>(), "", "no parameters");
  });
}

// --- Replicas ---

class FullyShardedReplicas : public ::testing::TestWithParam<std::set<int>> {};
INSTANTIATE_TEST_SUITE_P(WithoutSync, FullyShardedReplicas,
                         ::testing::Values(std::set<int>{}, std::set{0}, std::set{0, 1}));

TEST_P(FullyShardedReplicas, EqualOneProcess) {
  const Training training{.ranks = 4,
                          .optimizer = "adamw",
                          .backwards = 3,
                          .without_sync = GetParam(),
                          .max_norm = 0.05,
                          .with_extra = [](int step, int rank) { return step % 2 == 0 && rank != 1; }};
  const Trained expected = alone(training);
  on_ranks(4, [&](const Group& all) {
    const auto mesh = two_replicas(all);
    expect_close(
        sharded(mesh.group("shard"), training, {.block = "layers.*", .replicas = mesh.group("replicate")}, 4,
                2 * mesh.coordinate("replicate"))
            .values,
        expected.values);
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_test
