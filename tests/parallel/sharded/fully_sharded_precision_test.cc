// FullyShardedDataParallel with other types for some blocks and parameters, against one process that computes
// the same with explicit conversions.
#include <weft/dist_autograd/activation_checkpoint.h>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_precision_test {
namespace {

using namespace testing;

using Type = at::ScalarType;
constexpr Type narrow = at::kBFloat16, half = at::kHalf, wide = at::kFloat;

// A layer that converts between the types of its parameters, and notes the types of the latest forward.
struct Typed : torch::nn::Module {
  Typed(std::int64_t in, std::int64_t out) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({in})));
    linear = register_module("linear", torch::nn::Linear(in, out));
  }
  at::Tensor forward(const at::Tensor& x) {
    const Type of_norm = norm->weight.scalar_type(), of_linear = linear->weight.scalar_type();
    seen = {x.scalar_type(), of_norm, of_linear};
    return torch::tanh(linear(norm(x.to(of_norm)).to(of_linear)));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear linear{nullptr};
  std::vector<Type> seen;
};

struct TypedModel : torch::nn::Module {
  explicit TypedModel(std::int64_t width = 6) {
    static std::mutex mutex;  // the ranks share the process's generator
    std::lock_guard lock(mutex);
    torch::manual_seed(1);
    stem = register_module("stem", torch::nn::Linear(5, width));
    for (int i = 0; i < 2; ++i) list->push_back(layers.emplace_back(std::make_shared<Typed>(width, width)));
    register_module("layers", list);
    layers.push_back(register_module("head", std::make_shared<Block<Typed>>(width, 3)));
  }
  // inputs: explicit conversions before the blocks.
  at::Tensor forward(const at::Tensor& x, const std::vector<Type>& inputs = {}) {
    at::Tensor y = torch::relu(stem(x.to(stem->weight.scalar_type())));
    if (inputs.empty()) return std::static_pointer_cast<Block<Typed>>(layers[2])->forward(list->forward(y));
    for (std::size_t i = 0; i < layers.size(); ++i) y = layers[i]->forward(y.to(inputs[i]));
    return y;
  }
  std::vector<std::vector<Type>> seen() const {
    std::vector<std::vector<Type>> all;
    for (const auto& layer : layers) all.push_back(layer->seen);
    return all;
  }
  torch::nn::Linear stem{nullptr};
  torch::nn::Sequential list;
  std::vector<std::shared_ptr<Typed>> layers;  // and the head
};

// Options, and the types that follow from them.
struct Case {
  const char* name;
  Options options;
  Type input;                                                   // of the model, after its conversion
  std::vector<Type> inputs;                                     // of the blocks
  std::vector<std::tuple<std::string, Type, Type>> types = {};  // compute and reduction of what begins so
};

std::vector<Case> cases() {
  return {
      {.name = "NormsAndHeadWide",
       .options = {.mixed_precision = {.parameters = narrow, .reduction = wide},
                   .precision_of = {{"layers.*.norm", {.parameters = wide}}, {"head", {.parameters = wide}}}},
       .input = narrow,
       .inputs = {narrow, narrow, wide},
       .types = {{"layers.0.norm", wide, wide},
                 {"layers.1.norm", wide, wide},
                 {"head", wide, wide},
                 {"", narrow, wide}}},
      {.name = "OneBlockNarrow",
       .options = {.precision_of = {{"layers.1", {.parameters = narrow}}}},
       .input = wide,
       .inputs = {wide, narrow, narrow},  // nothing converts the input of the head: its norm does
       .types = {{"layers.1", narrow, narrow}, {"", wide, wide}}},
      {.name = "FirstMatchAndReductions",
       .options = {.mixed_precision = {.parameters = narrow},
                   .precision_of = {{"stem", {.reduction = half}},
                                    {"layers.0", {.parameters = half, .reduction = wide}},
                                    {"layers", {.parameters = wide, .reduction = narrow}},
                                    {"head.linear", {.parameters = wide}}}},
       .input = narrow,
       .inputs = {half, wide, narrow},
       .types = {{"stem", wide, half},
                 {"layers.0", half, wide},
                 {"layers.1", wide, narrow},
                 {"head.linear", wide, wide},
                 {"", narrow, narrow}}},
  };
}

std::pair<Type, Type> types_of(const Case& of, const std::string& name) {
  for (const auto& [prefix, compute, reduction] : of.types)
    if (name.starts_with(prefix)) return {compute, reduction};
  throw std::logic_error(name);
}

struct Step {
  std::vector<at::Tensor> gradients;  // sums over the backwards, in the types of the reduction
  std::vector<std::vector<Type>> seen;
};

at::Tensor wide_loss(const at::Tensor& output, const at::Tensor& target) {
  return loss_of(output.to(wide), target.to(wide));
}

// What one rank computes with the values of the master.
Step compute(const Case& of, const TypedModel& master, const std::vector<Batch>& parts) {
  Step step;
  for (const Batch& part : parts) {
    TypedModel model;
    const at::NoGradGuard no_grad;
    const auto values = master.named_parameters();
    for (const auto& entry : model.named_parameters())
      entry.value().set_data(values[entry.key()].detach().to(types_of(of, entry.key()).first));
    {
      const at::AutoGradMode with_grad(true);
      wide_loss(model.forward(part.data.to(of.input), of.inputs), part.target).backward();
    }
    std::size_t i = 0;
    for (const auto& entry : model.named_parameters()) {
      const at::Tensor& gradient = entry.value().grad();
      step.gradients.size() == i ? step.gradients.push_back(gradient.to(types_of(of, entry.key()).second))
                                 : (void)step.gradients[i].add_(gradient);
      ++i;
    }
    step.seen = model.seen();
  }
  return step;
}

class BlockTypeMatrix : public ::testing::TestWithParam<std::tuple<std::size_t, bool, bool, bool>> {};
INSTANTIATE_TEST_SUITE_P(Cases, BlockTypeMatrix,
                         ::testing::Combine(::testing::Range(std::size_t{0}, cases().size()),
                                            ::testing::Bool(), ::testing::Bool(), ::testing::Bool()));

// reshard_after_forward, replicas, no_sync(): two steps of SGD with momentum, bit by bit.
TEST_P(BlockTypeMatrix, EqualsExplicitConversions) {
  const auto [index, reshard, replicated, accumulates] = GetParam();
  const Case of = cases()[index];
  SCOPED_TRACE(of.name);
  const int ranks = replicated ? 4 : 2;
  constexpr int steps = 2;
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto parts_of = [&, accumulates = accumulates](int step, int rank) {
    std::vector<Batch> parts{Batch::of_step(step, ranks).part(rank, ranks)};
    if (accumulates) parts.push_back(Batch::of_step(10 + step, ranks).part(rank, ranks));
    return parts;
  };

  TypedModel master;
  std::vector<std::vector<Type>> seen;
  torch::optim::SGD expected(master.parameters(), sgd);
  for (int step = 0; step < steps; ++step) {
    std::vector<Step> by_rank;
    for (int rank = 0; rank < ranks; ++rank) by_rank.push_back(compute(of, master, parts_of(step, rank)));
    seen = by_rank[0].seen;
    const auto parameters = master.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      at::Tensor mean = (by_rank[0].gradients[i] + by_rank[1].gradients[i]).div(2);
      if (replicated) mean = (mean + (by_rank[2].gradients[i] + by_rank[3].gradients[i]).div(2)).div(2);
      parameters[i].mutable_grad() = mean.to(wide);
    }
    expected.step();
  }

  on_ranks(ranks, [&, reshard = reshard, replicated = replicated](const Group& all) {
    Options options = of.options;
    options.block = "layers.*";
    options.reshard_after_forward = reshard;
    std::optional<DeviceMesh> mesh;
    if (replicated) {
      mesh = two_replicas(all);
      options.replicas = mesh->group("replicate");
    }
    FullyShardedDataParallel fsdp{replicated ? mesh->group("shard") : all, std::make_shared<TypedModel>(),
                                  options};
    torch::optim::SGD optimizer(fsdp.parameters(), sgd);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const auto parts = parts_of(step, all.rank());
      const auto backward = [&](const Batch& part) {
        wide_loss(fsdp.forward(part.data.to(wide)), part.target).backward();
      };
      if (parts.size() > 1) {
        const auto guard = fsdp.no_sync();
        backward(parts.front());
      }
      backward(parts.back());
      EXPECT_EQ(fsdp.module().seen(), seen);
      for (const at::Tensor& parameter : fsdp.parameters()) EXPECT_EQ(parameter.grad().scalar_type(), wide);
      optimizer.step();
    }
    expect_parts(fsdp, master, 0);
  });
}

TEST(BlockTypes, MayLeaveInputsUnconverted) {
  on_ranks(2, [&](const Group& group) {
    FullyShardedDataParallel fsdp{
        group,
        std::make_shared<TypedModel>(),
        {.block = "layers.*",
         .mixed_precision = {.parameters = narrow},
         .precision_of = {{.pattern = "layers.1", .types = {.parameters = half}, .convert_inputs = false}}}};
    (void)fsdp.forward(at::ones({2, 5}));
    EXPECT_EQ(fsdp.module().layers[1]->seen, (std::vector<Type>{narrow, half, half}));
    EXPECT_EQ(fsdp.module().layers[2]->seen, (std::vector<Type>{narrow, narrow, narrow}));
  });
}

// Nothing converts the input of a block that leaves it as it is, nor the output of a block for what follows.
TEST(BlockTypes, AnotherTypeOfAnInputIsAnErrorOfTheOperator) {
  struct Linears : torch::nn::Module {
    Linears() {
      blocks->push_back(torch::nn::Linear(5, 5));
      register_module("blocks", blocks);
      last = register_module("last", torch::nn::Linear(5, 5));
    }
    at::Tensor forward(const at::Tensor& x) { return last(blocks->forward(x)); }
    torch::nn::Sequential blocks;
    torch::nn::Linear last{nullptr};
  };
  for (const bool converts : {true, false}) {
    on_ranks(2, [&](const Group& group) {
      FullyShardedDataParallel fsdp{
          group,
          std::make_shared<Linears>(),
          {.block = "blocks.*",
           .precision_of = {
               {.pattern = "blocks", .types = {.parameters = half}, .convert_inputs = converts}}}};
      EXPECT_THROW((void)fsdp.forward(at::ones({2, 5})), c10::Error);
    });
  }
}

// Without the FullyShardedDataParallel, a block gets its inputs as they are.
TEST(BlockTypes, AreNotConvertedOutsideOfTheShardedModule) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<TypedModel>();
    const auto block = std::static_pointer_cast<Block<Typed>>(model->layers[2]);
    {
      FullyShardedDataParallel fsdp{group, model, {.mixed_precision = {.parameters = narrow}}};
      const auto whole = fsdp.gather();
      (void)block->forward(at::ones({2, 6}));
      EXPECT_EQ(block->seen[0], narrow);
    }
    for (const at::Tensor& parameter : block->parameters()) parameter.set_data(at::ones(parameter.sizes()));
    (void)block->forward(at::ones({2, 6}));
    EXPECT_EQ(block->seen[0], wide);
  });
}

// The recomputation converts its inputs, too: otherwise its gradients were those of another type.
TEST(BlockTypes, ARecomputedBlockConvertsItsInputs) {
  struct Recomputing : torch::nn::Module {
    Recomputing() { model = register_module("model", std::make_shared<TypedModel>()); }
    at::Tensor forward(const at::Tensor& x, bool recomputes) {
      const auto head = std::static_pointer_cast<Block<Typed>>(model->layers[2]);
      const at::Tensor y = model->list->forward(model->stem(x));
      return recomputes ? dist_autograd::activation_checkpoint(*head, y) : head->forward(y);
    }
    std::shared_ptr<TypedModel> model;
  };
  on_ranks(2, [&](const Group& group) {
    std::vector<std::vector<at::Tensor>> gradients;
    for (const bool recomputes : {false, true}) {
      FullyShardedDataParallel fsdp{group,
                                    std::make_shared<Recomputing>(),
                                    {.block = "model.layers.*",
                                     .mixed_precision = {.parameters = narrow},
                                     .precision_of = {{"model.head", {.parameters = half}}}}};
      const Batch part = Batch::of_step(0, 2).part(group.rank(), 2);
      wide_loss(fsdp.forward(part.data, recomputes), part.target).backward();
      EXPECT_EQ(fsdp.module().model->layers[2]->seen, (std::vector<Type>{half, half, half}));
      auto& own = gradients.emplace_back();
      for (const at::Tensor& parameter : fsdp.parameters()) own.push_back(parameter.grad().clone());
    }
    expect_close(gradients[0], gradients[1], 0);
  });
}

TEST(BlockTypes, BuffersHaveTheTypeOfTheirEntry) {
  struct Norms : torch::nn::Module {
    Norms() {
      for (auto* norm : {&first, &second}) {
        const bool is_first = norm == &first;
        *norm = register_module(is_first ? "first" : "second", torch::nn::BatchNorm1d(5));
      }
    }
    at::Tensor forward(const at::Tensor& x) { return first(second(x).to(wide)); }
    torch::nn::BatchNorm1d first{nullptr}, second{nullptr};
  };
  on_ranks(2, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group,
                                  std::make_shared<Norms>(),
                                  {.mixed_precision = {.parameters = narrow, .buffers = narrow},
                                   .precision_of = {{"first", {.parameters = wide}}}}};
    EXPECT_EQ(fsdp.module().first->running_mean.scalar_type(), wide);
    EXPECT_EQ(fsdp.module().second->running_mean.scalar_type(), narrow);
    EXPECT_EQ(fsdp.forward(at::randn({4, 5})).scalar_type(), wide);
  });
}

// Vectors whose gradients have the type of those of a matrix do not take buffers of the matrix' size. (The
// matrices have one or two such buffers, which depends on the speed of the reductions.)
TEST(BlockTypes, NeedNoLargerBuffers) {
  constexpr std::int64_t width = 64;
  struct Mixed : torch::nn::Module {
    Mixed() {
      weight = register_parameter("weight", at::eye(width));
      for (const char* name : {"a", "b", "c"}) vectors.push_back(register_parameter(name, at::ones({width})));
    }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = at::linear(x.to(weight.scalar_type()), weight).to(wide);
      for (const at::Tensor& vector : vectors) y = y * vector.to(wide);
      return y;
    }
    at::Tensor weight;
    std::vector<at::Tensor> vectors;
  };
  on_ranks(2, [&](const Group& group) {
    const auto bytes = [&](std::vector<PrecisionOf> precision_of) {
      torch::nn::Sequential layers;
      for (int i = 0; i < 4; ++i) layers->push_back(std::make_shared<Mixed>());
      FullyShardedDataParallel fsdp{group,
                                    layers,
                                    {.block = "*",
                                     .mixed_precision = {.parameters = narrow, .reduction = wide},
                                     .precision_of = std::move(precision_of)}};
      fsdp.forward(at::ones({2, width})).sum().backward();
      return fsdp.bytes();
    };
    constexpr std::size_t vector = width * 8, matrix = width * width * 4;
    const auto wide_reduction = [](Type type) {
      return data_parallel::MixedPrecision{.parameters = type, .reduction = wide};
    };
    EXPECT_LT(bytes({{"*.a", wide_reduction(wide)},
                     {"*.b", wide_reduction(half)},
                     {"*.c", wide_reduction(at::kDouble)}}),
              bytes({}) + matrix + 30 * vector);
  });
}

TEST(BlockTypes, AreComparedAndMustMatch) {
  on_ranks(2, [&](const Group& group) {
    const auto make = [&](std::vector<PrecisionOf> precision_of) {
      FullyShardedDataParallel fsdp{group,
                                    std::make_shared<TypedModel>(),
                                    {.block = "layers.*", .precision_of = std::move(precision_of)}};
    };
    expect_error([&] { make({{"layers.*.norms", {.parameters = wide}}}); },
                 "no parameter, buffer or block matches \"layers.*.norms\" of precision_of, expected a "
                 "pattern of their names");
    expect_error([&] { make({{"head", {.parameters = group.rank() == 0 ? wide : narrow}}}); },
                 "rank 1 has options");
  });
}

TEST(BlockTypes, AreComparedOverReplicas) {
  on_ranks(4, [](const Group& all) {
    const collectives::DeviceMesh mesh = two_replicas(all);
    const bool first = mesh.group("replicate").rank() == 0;
    expect_error(
        [&] {
          FullyShardedDataParallel{
              mesh.group("shard"),
              std::make_shared<Model>(),
              {.block = "layers.*",
               .precision_of = {{first ? "layers.0" : "layers.1", {.parameters = narrow}}},
               .replicas = mesh.group("replicate")}};
        },
        "has options");
  });
}

TEST(BlockTypes, ApplyToBlocksWithoutParameters) {
  on_ranks(1, [](const Group& group) {
    Type seen = at::kDouble;
    torch::nn::Sequential model(torch::nn::Functional([&](const at::Tensor& x) {
                                  seen = x.scalar_type();
                                  return x.to(narrow);
                                }),
                                torch::nn::Linear(3, 3));
    FullyShardedDataParallel fsdp{group,
                                  model,
                                  {.block = "*",
                                   .mixed_precision = {.parameters = narrow},
                                   .precision_of = {{.pattern = "0", .convert_inputs = false}}}};
    (void)fsdp.run([](auto& module) { return module.forward(at::ones({2, 3})); });
    EXPECT_EQ(seen, wide);
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_precision_test
