// FullyShardedDataParallel with parameters and buffers that stay as they are (Options::ignored).

#include <algorithm>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_ignored_test {
namespace {

using namespace testing;

constexpr int ranks = 2;

bool is_split(const ShardedModule& fsdp, const std::string& parameter) {
  const auto names = fsdp.units().names();
  return std::find(names.begin(), names.end(), parameter) != names.end();
}

// The program averages the gradients of the ignored parameters and steps them itself.
TEST(FullyShardedIgnored, ParametersAreTrainedByTheProgram) {
  for (const std::vector<std::string>& ignored : {std::vector<std::string>{"stem"},
                                                  {"stem.bias", "layers.*.norm"},
                                                  {"layers.1.linear.weight", "head.e*"},
                                                  {"layers.1"}}) {
    Model whole;
    torch::optim::SGD expected(whole.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) train(whole, expected, step, ranks);
    on_ranks(ranks, [&](const Group& group) {
      const auto model = std::make_shared<Model>();
      std::map<std::string, at::Tensor> before;
      for (const auto& entry : model->named_parameters()) before[entry.key()] = entry.value();
      FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .ignored = ignored}};
      std::vector<at::Tensor> parameters = fsdp.parameters(), others;
      for (const auto& [name, tensor] : before) {
        if (is_split(fsdp, name)) continue;
        EXPECT_NO_THROW((void)tensor.sum()) << "it is whole";
        others.push_back(tensor);
      }
      parameters.insert(parameters.end(), others.begin(), others.end());
      torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        own_loss(fsdp, step).backward();
        for (const at::Tensor& each : others) group.all_reduce(each.grad(), collectives::ReduceOp::avg).get();
        optimizer.step();
      }
      ASSERT_FALSE(others.empty());
      const auto all = fsdp.gather();
      expect_close(values_of(*model), values_of(whole));
    });
  }
}

struct Expert : torch::nn::Module {
  explicit Expert(std::uint64_t seed) : layer(register_module("layer", layer_of(seed))) {
    weight = register_parameter("weight",
                                at::randn({5, 5}, at::detail::createCPUGenerator(seed + 50), at::kDouble));
    register_buffer("seen", at::full({1}, static_cast<double>(seed), at::kDouble));
  }
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x.mm(weight.to(x.dtype()))); }
  std::shared_ptr<Block<Layer>> layer;
  at::Tensor weight;
};
struct Experts : torch::nn::Module {
  explicit Experts(std::uint64_t seed = 1) {
    experts->push_back(std::make_shared<Expert>(seed));
    experts->push_back(std::make_shared<Expert>(seed + 7));
    register_module("experts", experts);
    last = register_module("last", layer_of(90));
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(experts->forward(x)); }
  torch::nn::Sequential experts;
  std::shared_ptr<Block<Layer>> last;
};

TEST(FullyShardedIgnored, AreNeitherBroadcastNorConvertedAndBlocksWithinAreSplit) {
  on_ranks(ranks, [&](const Group& group) {
    const auto seed = static_cast<std::uint64_t>(1 + 100 * group.rank());
    const auto model = std::make_shared<Experts>(seed);
    FullyShardedDataParallel fsdp{
        group,
        model,
        {.ignored = {"experts"}, .mixed_precision = {.parameters = at::kFloat, .buffers = at::kFloat}}};
    EXPECT_FALSE(is_split(fsdp, "experts.0.weight"));
    EXPECT_TRUE(is_split(fsdp, "experts.0.layer.linear.weight"));
    const Experts own(seed), first(1);
    for (const char* name : {"experts.0.weight", "experts.1.weight"})
      EXPECT_TRUE(at::equal(model->named_parameters()[name], own.named_parameters()[name])) << name;
    EXPECT_EQ(model->named_buffers()["experts.1.seen"].scalar_type(), at::kDouble);
    EXPECT_EQ(model->named_buffers()["experts.1.seen"].item<double>(), static_cast<double>(seed + 7));
    {
      const auto whole = fsdp.gather();
      EXPECT_TRUE(at::equal(model->named_parameters()["experts.0.layer.linear.weight"],
                            first.named_parameters()["experts.0.layer.linear.weight"].to(at::kFloat)));
    }
    fsdp.forward(at::ones({3, 5}, at::kDouble)).sum().backward();
    EXPECT_EQ(model->named_parameters()["experts.0.weight"].grad().scalar_type(), at::kDouble);
  });
}

// The input of an ignored module is not converted to its type, and not converted back.
TEST(FullyShardedIgnored, ModulesGetInputsOfTheNarrowType) {
  on_ranks(1, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group,
                                  std::make_shared<Model>(3, at::kFloat),
                                  {.ignored = {"stem"}, .mixed_precision = {.parameters = at::kBFloat16}}};
    expect_torch_error([&] { return fsdp.forward(at::ones({3, 5})); }, "dtype");
  });
}

TEST(FullyShardedIgnored, RanksMayIgnoreDifferentParameters) {
  struct Extra : torch::nn::Module {
    explicit Extra(int experts) {
      model = register_module("model", std::make_shared<Model>());
      for (int i = 0; i < experts; ++i)
        weights.push_back(register_parameter("expert" + std::to_string(i), at::ones({3}, at::kDouble)));
    }
    at::Tensor forward(const at::Tensor& x) {
      at::Tensor y = model->forward(x);
      for (const at::Tensor& weight : weights) y = y * weight;
      return y;
    }
    std::shared_ptr<Model> model;
    std::vector<at::Tensor> weights;
  };
  on_ranks(ranks, [&](const Group& group) {
    const auto model = std::make_shared<Extra>(1 + group.rank());
    FullyShardedDataParallel fsdp{group, model, {.block = "model.layers.*", .ignored = {"expert*"}}};
    const Batch batch = Batch::of_step(0, ranks);
    const Batch part = batch.part(group.rank(), ranks);
    loss_of(fsdp.forward(part.data), part.target).backward();
    Extra whole(0);
    loss_of(whole.forward(batch.data), batch.target).backward();
    expect_gradients(fsdp, whole);
    for (const at::Tensor& weight : model->weights) EXPECT_TRUE(weight.grad().defined());
  });
}

TEST(FullyShardedIgnored, AreSavedUnchangedInACheckpoint) {
  const Folder folder;
  const Options options{.block = "layers.*", .ignored = {"stem", "layers.1.norm"}};
  on_ranks(ranks, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    model->stem->register_buffer("seen", at::full({1}, 3.0, at::kDouble));
    FullyShardedDataParallel fsdp{group, model, options};
    FullyShardedOptimizer optimizer(fsdp, torch::optim::SGDOptions(0.1).momentum(0.9));
    own_loss(fsdp).backward();
    optimizer.step();
    SlicedState state;
    fsdp.add_to(state, "net/");
    optimizer.add_to(state);
    EXPECT_TRUE(state.tensors.at("net/stem.weight").values.is_alias_of(model->stem->weight));
    EXPECT_TRUE(state.tensors.at("net/stem.seen").values.is_alias_of(model->stem->named_buffers()["seen"]));
    EXPECT_EQ(state.tensors.at("net/layers.1.norm.bias").values.numel(), 5);
    EXPECT_FALSE(state.tensors.contains("optimizer/stem.weight/momentum_buffer")) << "the program's own";
    Checkpoints checkpoints(group, folder.path);
    checkpoints.save(1, state).get();
    std::vector<at::Tensor> expected;
    for (const auto& [name, tensor] : state.tensors) expected.push_back(tensor.values.clone());
    for (auto& [name, tensor] : state.tensors) tensor.values.zero_();
    (void)checkpoints.load(1, state);
    std::size_t i = 0;
    for (const auto& [name, tensor] : state.tensors)
      EXPECT_TRUE(at::equal(tensor.values, expected[i++])) << name;
  });
}

TEST(FullyShardedIgnored, InvalidUseIsReported) {
  on_ranks(1, [&](const Group& group) {
    const auto expect_refused = [&](const std::shared_ptr<torch::nn::Module>& module,
                                    const std::string& ignored, const std::string& text) {
      expect_error([&] { ShardedModule(group, module, {.block = {}, .ignored = {ignored}}); },
                   ErrorKind::invalid_argument, text);
    };
    const auto model = std::make_shared<Model>();
    expect_refused(model, "steam", "no parameter or buffer matches the ignored \"steam\"");
    expect_refused(model, "head", "the sharded::Block head is ignored");
    expect_refused(std::make_shared<torch::nn::LinearImpl>(2, 2), "*", "no parameters that are not ignored");
    expect_refused(std::make_shared<Aliased>(), "b", "b shares its memory with a");
    EXPECT_NO_THROW((void)model->stem->weight.sum()) << "a refused module is whole";
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_ignored_test
