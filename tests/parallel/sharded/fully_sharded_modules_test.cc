// FullyShardedDataParallel with other forms of modules: recomputed blocks, blocks with containers and
// structs, frozen blocks, modules without inputs. Also the state of the module's parameters between forward
// and backward.

#include <limits>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_modules_test {
namespace {

using namespace testing;

constexpr int ranks = 2;

// --- Inputs and outputs ---

struct Activations {
  at::Tensor x;
  std::map<std::string, at::Tensor> named;
  std::vector<at::Tensor> list;
};
WEFT_CODEC(Activations, x, named, list)

// A module whose blocks exchange structs, maps, tuples and vectors.
struct Structured : torch::nn::Module {
  struct First : Layer {
    using Layer::Layer;
    Activations forward(const Activations& in) {
      const at::Tensor y = Layer::forward(in.x);
      return {y, {{"sum", y + in.named.at("bias")}}, {y, y * 2}};
    }
  };
  struct Second : Layer {
    using Layer::Layer;
    std::tuple<at::Tensor, std::vector<at::Tensor>> forward(Activations in) {
      return {Layer::forward(in.named.at("sum")), {in.list[0] * in.list[1], in.x}};
    }
  };
  struct Third : Layer {
    using Layer::Layer;
    std::map<std::string, at::Tensor> forward(const std::tuple<at::Tensor, std::vector<at::Tensor>>& in) {
      return {{"out", Layer::forward(std::get<0>(in) + std::get<1>(in)[0])}, {"unused", std::get<1>(in)[1]}};
    }
  };
  explicit Structured(at::ScalarType type = at::kDouble) {
    first = register_module("first", std::make_shared<Block<First>>(5));
    second = register_module("second", std::make_shared<Block<Second>>(5));
    third = register_module("third", std::make_shared<Block<Third>>(5));
    std::uint64_t seed = 1;
    for (const at::Tensor& parameter : parameters())
      parameter.set_data(
          at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++), at::kDouble).to(type));
  }
  Activations forward(const Activations& in) {
    auto out = third->forward(second->forward(first->forward(in)));
    return {out.at("out"), {}, {}};
  }
  std::shared_ptr<Block<First>> first;
  std::shared_ptr<Block<Second>> second;
  std::shared_ptr<Block<Third>> third;
};

TEST(FullyShardedForms, BlocksMayExchangeContainersAndStructs) {
  expect_equal_gradients(
      [] { return std::make_shared<Structured>(); },
      [](auto& module, const Batch& part) {
        const at::Tensor bias = part.data.sum(0, true);
        return module.forward(Activations{part.data, {{"bias", bias}}, {}}).x.square().mean();
      });
}

TEST(FullyShardedForms, BlocksMayExchangeStructsInMixedPrecision) {
  on_ranks(ranks, [&](const Group& group) {
    FullyShardedDataParallel fsdp{
        group,
        std::make_shared<Structured>(at::kFloat),
        {.mixed_precision = {.parameters = at::kBFloat16, .reduction = at::kFloat}}};
    Structured narrow(at::kBFloat16);
    const Batch batch = Batch::of_step(0, 1);
    const auto run = [&](auto& module, at::ScalarType type) {
      const at::Tensor bias = batch.data.sum(0, true).to(type);
      const at::Tensor out = module.forward(Activations{batch.data.to(type), {{"bias", bias}}, {}}).x;
      EXPECT_EQ(out.scalar_type(), at::kBFloat16);
      out.to(at::kFloat).square().mean().backward();
    };
    run(fsdp, at::kFloat);
    run(narrow, at::kBFloat16);
    expect_gradients(fsdp, narrow, 0);
  });
}

TEST(FullyShardedForms, AForwardMayHaveNoArguments) {
  struct Source : torch::nn::Module {
    Source() : layer(register_module("layer", layer_of(3))) {
      start = register_parameter("start", at::linspace(-1, 1, 10, at::kDouble).view({2, 5}));
    }
    at::Tensor forward() { return layer->forward(start); }
    std::shared_ptr<Block<Layer>> layer;
    at::Tensor start;
  };
  expect_equal_gradients([] { return std::make_shared<Source>(); },
                         [](auto& module, const Batch&) { return module.forward().square().mean(); });
}

// Other methods than forward.
struct WithMethods : torch::nn::Module {
  WithMethods()
      : layer(register_module("layer", layer_of(3))), other(register_module("other", layer_of(4))) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x); }
  at::Tensor loss(const at::Tensor& x, double scale) {
    return other->forward(forward(x)).square().mean() * scale;
  }
  std::shared_ptr<Block<Layer>> layer, other;
};

template <class Of>
at::Tensor loss_by_method(Of& module, const Batch& batch) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Of>) {
    return module.loss(batch.data, 2);
  } else {
    return module.run([&](WithMethods& of) { return of.loss(batch.data, 2); });
  }
}

TEST(FullyShardedForms, AnotherMethodMayBeTheForward) {
  expect_equal_gradients([] { return std::make_shared<WithMethods>(); },
                         [](auto& module, const Batch& batch) { return loss_by_method(module, batch); });
}

// --- Frozen parts, and blocks without autograd ---

struct Frozen : torch::nn::Module {
  Frozen() {
    for (std::uint64_t i = 0; i < 3; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), layer_of(10 * i + 1)));
    for (at::Tensor& parameter : blocks[1]->parameters()) parameter.requires_grad_(false);
    blocks[2]->linear->weight.requires_grad_(false);
  }
  // without_grad: block 0 runs without autograd.
  at::Tensor forward(at::Tensor x, int times, bool without_grad) {
    {
      const at::AutoGradMode mode(!without_grad);
      x = blocks[0]->forward(x);
    }
    for (int i = 0; i < times; ++i) x = blocks[2]->forward(blocks[1]->forward(x));
    return x;
  }
  std::vector<std::shared_ptr<Block<Layer>>> blocks;
};

TEST(FullyShardedForms, BlocksMayRunSeveralTimesFrozenAndWithoutAutograd) {
  for (const bool reshard : {true, false})
    for (const bool without_grad : {true, false})
      expect_equal_gradients([] { return std::make_shared<Frozen>(); },
                             [&](auto& module, const Batch& part) {
                               return module.forward(part.data, 3, without_grad).square().mean();
                             },
                             {.reshard_after_forward = reshard});
}

TEST(FullyShardedForms, AFrozenParameterGroupKeepsItsValues) {
  const auto spec = dist_optim::OptimizerSpec(torch::optim::AdamWOptions(0.01))
                        .with_group("layers.1", {{"lr", 0.1}, {"weight_decay", 0}});
  const auto freeze = [](Model& model) {
    for (at::Tensor& parameter : model.layers->ptr(2)->parameters()) parameter.requires_grad_(false);
    model.layers->ptr<Layer>(1)->linear->bias.requires_grad_(false);
  };
  Model whole;
  freeze(whole);
  std::vector<at::Tensor> trained, slower;
  for (const auto& entry : whole.named_parameters())
    if (entry.value().requires_grad())
      (entry.key().starts_with("layers.1.") ? slower : trained).push_back(entry.value());
  torch::optim::AdamW expected(trained, torch::optim::AdamWOptions(0.01)),
      other(slower, torch::optim::AdamWOptions(0.1).weight_decay(0));
  for (int step = 0; step < 3; ++step) {
    whole.zero_grad();
    const Batch batch = Batch::of_step(step, ranks);
    loss_of(whole.forward(batch.data), batch.target).backward();
    expected.step();
    other.step();
  }
  on_ranks(ranks, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    freeze(*model);
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    FullyShardedOptimizer optimizer(fsdp, spec);
    for (int step = 0; step < 3; ++step) train(fsdp, optimizer, step, ranks, group.rank());
    EXPECT_EQ(optimizer.learning_rate("layers.1"), 0.1);
    const auto all = fsdp.gather();
    expect_close(values_of(*model), values_of(whole));
  });
}

// --- The module's parameters ---

bool is_whole(const at::Tensor& parameter) {
  try {
    (void)parameter.sum();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

TEST(FullyShardedModule, MayKeepWholeParametersBetweenForwardAndBackward) {
  on_ranks(ranks, [&](const Group& group) {
    for (const bool reshard : {true, false}) {
      const auto model = std::make_shared<Model>();
      const Model whole;
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .reshard_after_forward = reshard}};
      for (int i = 0; i < 2; ++i) {
        const at::Tensor loss = own_loss(fsdp, i);
        for (const auto& entry : model->named_parameters()) {
          // The head is the last block. The stem is in no block.
          const bool in_layers = entry.key().starts_with("layers");
          EXPECT_EQ(is_whole(entry.value()), !in_layers || !reshard) << entry.key();
          if (in_layers && reshard) continue;
          EXPECT_TRUE(at::equal(entry.value(), whole.named_parameters()[entry.key()]));
        }
        loss.backward();
        for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(is_whole(parameter));
      }
    }
  });
}

// Backward reaches the last block alone, or no block.
TEST(FullyShardedModule, IsSplitAfterABackwardThatDoesNotReachItsBlocks) {
  struct Outputs : torch::nn::Module {
    Outputs() {
      for (std::uint64_t i = 0; i < 4; ++i)
        blocks.push_back(register_module("block" + std::to_string(i), layer_of(10 * i)));
      scale = register_parameter("scale", at::ones({5}, at::kDouble));
    }
    std::vector<at::Tensor> forward(at::Tensor x) {
      std::vector<at::Tensor> outputs{x * scale};
      for (const auto& block : blocks) outputs.push_back(x = block->forward(x.detach()));
      return outputs;
    }
    std::vector<std::shared_ptr<Block<Layer>>> blocks;
    at::Tensor scale;
  };
  on_ranks(ranks, [&](const Group& group) {
    for (const bool reshard : {true, false}) {
      const auto model = std::make_shared<Outputs>();
      FullyShardedDataParallel fsdp{group, model, {.reshard_after_forward = reshard}};
      for (const std::size_t used : {4, 0, 2}) {
        Outputs whole;
        const Batch batch = Batch::of_step(0, ranks);
        whole.forward(batch.data)[used].square().mean().backward();
        for (at::Tensor& parameter : fsdp.parameters()) parameter.mutable_grad().reset();
        fsdp.forward(batch.part(group.rank(), ranks).data)[used].square().mean().backward();
        expect_gradients(fsdp, whole);
        for (const at::Tensor& parameter : model->parameters()) EXPECT_FALSE(is_whole(parameter));
      }
    }
  });
}

TEST(FullyShardedModule, MustNotChangeItsTypeOrDevice) {
  on_ranks(1, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    const Batch batch = Batch::of_step(0, 1);
    expect_torch_error([&] { model->to(at::kFloat); }, "move or convert the module before it is split");
    loss_of(fsdp.forward(batch.data), batch.target).backward();
    model->stem->bias.set_data(at::ones({5}));
    expect_error([&] { (void)fsdp.forward(batch.data); }, ErrorKind::failed_precondition,
                 "parameter stem.bias has another type now");
  });
}

TEST(FullyShardedModule, MustBeOnOneDevice) {
  on_ranks(1, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    model->head->register_parameter("other",
                                    at::empty({2}, at::TensorOptions(at::kDouble).device(at::kMeta)));
    expect_error([&] { ShardedModule(group, model, {.block = "layers.*"}); }, ErrorKind::unsupported,
                 "parameter head.other is on meta, stem.weight on cpu");
  });
}

TEST(FullyShardedModule, RefusesAGatherWithinItsForward) {
  struct Gathers : torch::nn::Module {
    Gathers() : layer(register_module("layer", layer_of(3))) {}
    at::Tensor forward(const at::Tensor& x) {
      during();
      return layer->forward(x);
    }
    std::shared_ptr<Block<Layer>> layer;
    std::function<void()> during;
  };
  on_ranks(1, [&](const Group& group) {
    const auto model = std::make_shared<Gathers>();
    FullyShardedDataParallel fsdp{group, model};
    model->during = [&] { (void)fsdp.gather(); };
    const at::Tensor x = at::ones({2, 5}, at::kDouble);
    expect_error([&] { (void)fsdp.forward(x); }, ErrorKind::failed_precondition,
                 "gather() within forward or backward");
    model->during = [] {};
    fsdp.forward(x).sum().backward();
  });
}

// --- Programs ---

TEST(FullyShardedForms, TrainingAndEvaluationMayAlternate) {
  Model whole;
  torch::optim::SGD expected(whole.parameters(), 0.1);
  std::vector<at::Tensor> outputs;
  const Batch evaluated = Batch::of_step(9, ranks);
  for (int step = 0; step < 3; ++step) {
    train(whole, expected, step, ranks);
    outputs.push_back(whole.forward(evaluated.data).detach());
  }
  on_ranks(ranks, [&](const Group& group) {
    for (const bool reshard : {true, false}) {
      const auto model = std::make_shared<Model>();
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .reshard_after_forward = reshard}};
      torch::optim::SGD optimizer(fsdp.parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        model->train();
        train(fsdp, optimizer, step, ranks, group.rank());
        model->eval();
        const at::NoGradGuard no_grad;
        expect_close({fsdp.forward(evaluated.data)}, {outputs[static_cast<std::size_t>(step)]});
      }
    }
  });
}

// The blocks have equal sizes, so the collectives alone do not detect the order.
TEST(FullyShardedForms, AnotherOrderOnOneRankIsNamed) {
  struct Swapped : torch::nn::Module {
    Swapped() : a(register_module("a", layer_of(1))), b(register_module("b", layer_of(9))) {}
    at::Tensor forward(const at::Tensor& x, bool swapped) {
      return swapped ? b->forward(a->forward(x)) : a->forward(b->forward(x));
    }
    std::shared_ptr<Block<Layer>> a, b;
  };
  for (const int before : {0, 2})  // steps in the same order
    on_ranks(ranks, [&](const Group& group) {
      FullyShardedDataParallel fsdp{group, std::make_shared<Swapped>()};
      const at::Tensor x = at::ones({2, 5}, at::kDouble);
      for (int i = 0; i < before; ++i) fsdp.forward(x, false).sum().backward();
      expect_error([&] { fsdp.forward(x, group.rank() == 1).sum().backward(); },
                   ErrorKind::failed_precondition,
                   before == 0 ? "in another order" : "rank 1 has run the blocks in another order");
    });
}

TEST(FullyShardedForms, TheNormIsOfGradientsOfAllTypes) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      wide = register_parameter("wide", at::linspace(-1, 1, 5, at::kDouble));
      narrow = register_parameter("narrow", at::linspace(1, 2, 5, at::kFloat));
    }
    at::Tensor forward(const at::Tensor& x) { return (x * wide * narrow.to(at::kDouble)).square().mean(); }
    at::Tensor wide, narrow;
  };
  for (const double type : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    Mixed whole;
    const Batch batch = Batch::of_step(0, ranks);
    whole.forward(batch.data).backward();
    const at::Tensor all = at::cat({whole.wide.grad(), whole.narrow.grad().to(at::kDouble)});
    const double norm = all.norm(type).item<double>();
    for (const at::Tensor& parameter : whole.parameters())
      parameter.mutable_grad().mul_(0.01 / (norm + 1e-6));
    on_ranks(ranks, [&](const Group& group) {
      FullyShardedDataParallel fsdp{group, std::make_shared<Mixed>()};
      fsdp.forward(batch.part(group.rank(), ranks).data).backward();
      EXPECT_NEAR(fsdp.clip_grad_norm(0.01, type), norm, 1e-6 * norm);
      expect_gradients(fsdp, whole, 1e-6);
      for (const ParameterSlice& slice : fsdp.units().slices())
        EXPECT_EQ(slice.leaf.tensor.grad().scalar_type(),
                  slice.parameter == "wide" ? at::kDouble : at::kFloat);
    });
  }
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_modules_test
