// Modules that are split over a tensor group and trained data parallel are saved on one mesh, and continue on
// another one.
#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/parallel/sharded/checkpoint/export_tensors.h>
#include <weft/parallel/sharded/checkpoint/weights.h>
#include <weft/parallel/sharded/sharded_optimizer.h>
#include <weft/parallel/tensor_parallel/gradients.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::split_modules_test {
namespace {

using namespace testing;
using tensor_parallel::ColumnParallelLinear;
using tensor_parallel::RowParallelLinear;
using tensor_parallel::VocabularyParallelEmbedding;

constexpr std::int64_t width = 8, vocabulary = 11;
constexpr int rows = 4, steps = 6;  // rows: of all ranks together

at::Generator generator(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

// Every way in which a layer is split: rows, blocks of rows, columns, rows of unequal numbers; and a norm.
struct Net : torch::nn::Module {
  explicit Net(const Group& group) {
    using namespace tensor_parallel;
    tokens = register_module(
        "tokens", VocabularyParallelEmbedding(group, vocabulary, width,
                                              VocabularyEmbeddingOptions{.generator = generator(1)}));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    fused = register_module(
        "fused", ColumnParallelLinear(group, width, 2 * width,
                                      ColumnParallelOptions{.blocks = 2, .generator = generator(2)}));
    down = register_module(
        "down", RowParallelLinear(group, width, width, RowParallelOptions{.generator = generator(3)}));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = tokens(ids);
    const auto parts = fused(norm(x)).chunk(2, -1);
    return x + down(torch::sigmoid(parts[0]) * parts[1]);
  }
  VocabularyParallelEmbedding tokens{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  ColumnParallelLinear fused{nullptr};
  RowParallelLinear down{nullptr};
};

const torch::optim::AdamWOptions adam_w(0.05);

// Uses LibTorch's optimizer on each rank of the data group.
struct Replicated {
  struct Optimizer {
    explicit Optimizer(const std::vector<ParameterSlice>& of)
        : slices(of), leaves(dist_optim::OptimizerSpec(adam_w).make(tensors_of(of))) {}
    static std::vector<at::Tensor> tensors_of(const std::vector<ParameterSlice>& slices) {
      std::vector<at::Tensor> tensors;
      for (const ParameterSlice& slice : slices) tensors.push_back(slice.leaf.tensor);
      return tensors;
    }
    void zero_grad() { leaves->zero_grad(); }
    void step() { leaves->step(); }
    void add_to(SlicedState& state) const {
      dist_optim::OptimizerState own{.optimizer = "AdamW", .learning_rates = {}, .tensors = {}};
      for (const ParameterSlice& slice : slices)
        dist_optim::read_state("AdamW", *leaves, slice.leaf.tensor, slice.leaf.name, own);
      add_optimizer(state, own, slices, "optimizer/");
    }
    void add_wanted_to(SlicedState& state, const std::vector<std::string>& names) const {
      add_wanted_optimizer(state, adam_w, slices, names, "optimizer/");
    }
    void take_from(const SlicedState& state) {
      const auto own = optimizer_in(state, "AdamW", slices, "optimizer/");
      for (const ParameterSlice& slice : slices)
        dist_optim::write_state(own, slice.leaf.name, slice.leaf.tensor, *leaves);
    }
    const std::vector<ParameterSlice> slices;
    const std::unique_ptr<torch::optim::Optimizer> leaves;
  };

  Replicated(const Group& data, const std::shared_ptr<Net>& model)
      : ddp(data, model), optimizer(slices_of(*model)) {}
  at::Tensor forward(const at::Tensor& ids) { return ddp.forward(ids); }
  void add_model_to(SlicedState& state) { add_module(state, ddp.module()); }

  data_parallel::DistributedDataParallel<Net> ddp;
  Optimizer optimizer;
};
// Each rank of the data group has the whole module, and a part of the optimizer's state.
struct Zero1 {
  Zero1(const Group& data, const std::shared_ptr<Net>& model) : ddp(data, model), optimizer(ddp, adam_w) {}
  at::Tensor forward(const at::Tensor& ids) { return ddp.forward(ids); }
  void add_model_to(SlicedState& state) { add_module(state, ddp.module()); }

  data_parallel::DistributedDataParallel<Net> ddp;
  ShardedOptimizer optimizer;
};
// Parameters, gradients and the optimizer's state are split.
struct Zero3 {
  Zero3(const Group& data, const std::shared_ptr<Net>& model) : fsdp(data, model), optimizer(fsdp, adam_w) {}
  at::Tensor forward(const at::Tensor& ids) { return fsdp.forward(ids); }
  void add_model_to(SlicedState& state) { fsdp.add_to(state); }

  FullyShardedDataParallel<Net> fsdp;
  FullyShardedOptimizer optimizer;
};

struct Grid {
  int data, tensor;
};

template <class Form>
struct Trainer {
  Trainer(const Group& world, Grid grid)
      : mesh(DeviceMesh::create(world, dimensions(grid)).get()),
        form(mesh.group("data"), std::make_shared<Net>(mesh.group("tensor"))) {}
  static std::vector<DeviceMesh::Dimension> dimensions(Grid grid) {
    return {{"data", grid.data}, {"tensor", grid.tensor}};
  }

  double step(int number) {
    const Group& data = mesh.group("data");
    const at::Tensor ids =
        at::randint(vocabulary, {rows, 3}, generator(100 + static_cast<std::uint64_t>(number)),
                    at::TensorOptions(at::kLong));
    form.optimizer.zero_grad();
    const at::Tensor own = ids.chunk(data.size())[static_cast<std::size_t>(data.rank())];
    const at::Tensor loss = (form.forward(own) - 1).square().mean();
    loss.backward();
    form.optimizer.step();
    const at::Tensor mean = loss.detach().clone();
    data.all_reduce(mean, collectives::ReduceOp::avg).get();
    return mean.item<double>();
  }

  const DeviceMesh mesh;
  Form form;
};

template <class Form>
class SplitModules : public ::testing::Test {
 protected:
  // Trains in one grid, saves at step 2, and returns the losses.
  std::vector<double> save_in(Grid grid) {
    std::vector<double> losses;
    on_ranks(grid.data * grid.tensor, [&](const Group& world) {
      Trainer<Form> trainer(world, grid);
      Checkpoints checkpoints(world, folder.path);
      for (int number = 0; number < steps; ++number) {
        const double loss = trainer.step(number);
        if (world.rank() == 0) losses.push_back(loss);
        if (number != 2) continue;
        SlicedState state;
        trainer.form.add_model_to(state);
        trainer.form.optimizer.add_to(state);
        checkpoints.save(number, state).get();
      }
    });
    return losses;
  }
  void expect_continues_in(Grid grid, const std::vector<double>& losses) {
    on_ranks(grid.data * grid.tensor, [&](const Group& world) {
      Trainer<Form> trainer(world, grid);
      Checkpoints checkpoints(world, folder.path);
      SlicedState state;
      trainer.form.add_model_to(state);
      trainer.form.optimizer.add_wanted_to(state, checkpoints.names(2));
      state.notes = checkpoints.load(2, state);
      trainer.form.optimizer.take_from(state);
      for (int number = 3; number < steps; ++number)
        EXPECT_NEAR(trainer.step(number), losses[static_cast<std::size_t>(number)], 1e-10)
            << "step " << number << " with " << grid.data << " x " << grid.tensor << " ranks";
    });
  }

  Folder folder;
};
using Forms = ::testing::Types<Replicated, Zero1, Zero3>;
TYPED_TEST_SUITE(SplitModules, Forms);

TYPED_TEST(SplitModules, ContinueOnAnotherMesh) {
  const std::vector<double> whole = this->save_in({1, 1});
  EXPECT_LT(whole.back(), whole.front());
  this->expect_continues_in({2, 2}, whole);
  std::filesystem::remove_all(this->folder.path);
  const std::vector<double> losses = this->save_in({2, 2});
  for (std::size_t step = 0; step < steps; ++step) EXPECT_NEAR(losses[step], whole[step], 1e-10);
  for (const Grid grid : {Grid{1, 1}, Grid{1, 4}, Grid{4, 1}, Grid{2, 2}})
    this->expect_continues_in(grid, losses);
}

// Weights of the whole model, from a file and into files, on several meshes.
TYPED_TEST(SplitModules, LoadAndSaveWeights) {
  const auto path = [this](const std::string& name) { return this->folder.path / name; };
  std::filesystem::create_directories(path("shards"));
  for (const char* name : {"whole.safetensors", "whole.pt", "shards"}) {
    on_ranks(1, [&](const Group& world) {
      Net whole(world);
      for (const at::Tensor& parameter : whole.parameters()) parameter.detach().mul_(3).add_(0.25);
      weights::save(whole, *weights::create_sink(path(name)), {.notes = {{"from", "the test"}}});
    });
    for (const Grid grid : {Grid{1, 1}, Grid{1, 4}, Grid{4, 1}, Grid{2, 2}}) {
      const std::string again = "again-" + std::string(name);
      on_ranks(grid.data * grid.tensor, [&](const Group& world) {
        Trainer<TypeParam> trainer(world, grid);
        SlicedState state;
        trainer.form.add_model_to(state);
        const weights::NameMap in_model = [](const std::string& each) { return "model/" + each; };
        load_weights(world, state, path(name), {.names = in_model});
        save_weights(world, state, path(again),
                     {.names = weights::prefixes({{"model/", ""}}), .notes = {{"from", "the test"}}});
      });
      const auto first = weights::open_source(path(name)), second = weights::open_source(path(again));
      ASSERT_EQ(second->tensors().size(), first->tensors().size());
      EXPECT_EQ(second->notes(), first->notes());
      for (const auto& [tensor, form] : first->tensors())
        expect_same(second->view(tensor), first->view(tensor),
                    again + ": " + tensor + " by " + std::to_string(grid.data) + " x " +
                        std::to_string(grid.tensor) + " ranks");
      std::filesystem::remove_all(path(again));
    }
  }
}

// The checkpoint has whole tensors in their usual order, which other programs and layers read.
TEST(SplitModuleCheckpoints, HaveWholeTensors) {
  for (const bool ignores : {false, true}) {
    const Folder folder;
    on_ranks(4, [&](const Group& world) {
      const auto model = std::make_shared<Net>(world);
      SlicedState state;
      std::optional<FullyShardedDataParallel<Net>> fsdp;
      if (ignores) {
        const Group alone = world.split(world.rank(), 0).get().value();
        fsdp.emplace(alone, model, Options{.ignored = {"fused", "down"}});
        fsdp->add_to(state);
      } else {
        add_module(state, *model);
      }
      Checkpoints(world, folder.path).save(1, state).get();
    });
    const auto file = folder.path / "whole.safetensors";
    export_tensors(folder.path, 1, file, "model/");
    const auto whole = dist_optim::read_tensor_file(file).tensors;
    on_ranks(1, [&](const Group& world) {
      const Net model(world);
      ASSERT_EQ(whole.size(), model.named_parameters().size());
      for (const auto& each : model.named_parameters())
        EXPECT_TRUE(at::equal(whole.at(each.key()), each.value().detach())) << each.key();
    });
  }
}

// clip_grad_norm() over slices that a data group and a tensor group split.
TEST(SplitModuleGradients, HaveTheNormOfTheWholeModel) {
  constexpr double no_maximum = 1e9;
  std::vector<double> norms;
  for (const Grid grid : {Grid{1, 1}, Grid{2, 2}, Grid{1, 4}}) {
    on_ranks(grid.data * grid.tensor, [&](const Group& world) {
      Trainer<Zero3> trainer(world, grid);
      trainer.step(0);
      const double norm = tensor_parallel::clip_grad_norm(
          trainer.form.fsdp.units().placements(),
          {{trainer.mesh.group("data"), true}, {trainer.mesh.group("tensor")}}, no_maximum);
      if (world.rank() == 0) norms.push_back(norm);
      EXPECT_EQ(trainer.form.fsdp.clip_grad_norm(no_maximum), norm);
    });
  }
  EXPECT_GT(norms[0], 0);
  EXPECT_NEAR(norms[1], norms[0], 1e-10 * norms[0]);
  EXPECT_NEAR(norms[2], norms[0], 1e-10 * norms[0]);
}

// A whole state has whole parameters.
TEST(SplitModuleOptimizers, RefuseAWholeState) {
  on_ranks(2, [&](const Group& world) {
    Trainer<Zero1> trainer(world, {1, 2});
    trainer.step(0);
    EXPECT_EQ(test::kind_of([&] { trainer.form.optimizer.whole_state(); }), ErrorKind::unsupported);
  });
}

}  // namespace
}  // namespace weft::sharded::split_modules_test
