// A GroupPipeline x what programs do with a module. Each cell trains a model on two ranks and in one process,
// with the same program, and compares the parameters at the end.
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/tensor_parallel/dropout.h>
#include <weft/parallel/training/unscale.h>

#include <atomic>
#include <sstream>

#include "tests/parallel/pipeline/blocks.h"
#include "tests/parallel/sharded/training_programs.h"

namespace weft::pipeline::training_matrix_test {
namespace {

using namespace testing;
using namespace std::chrono_literals;
using sharded::testing::Program;
using sharded::testing::unscale_alone;

constexpr int count = 4, microbatches = 2;
constexpr std::int64_t rows = 8;

// What the layers of a model do, other than the linear ones.
struct Habits {
  bool drops = false;
  bool own_generators = true;  // false: they draw with the generator of the process
  // Set: in each forward, another thread draws with the generator of the process, each time more numbers.
  std::atomic<int>* others = nullptr;
};

struct Layer : torch::nn::Module {
  Layer(int index, const Habits& habits)
      : index(index),
        habits(habits),
        generator(at::detail::createCPUGenerator(static_cast<std::uint64_t>(index))) {
    linear = register_module("linear", torch::nn::Linear(6, 6));
    to(at::kDouble);
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : parameters())
      parameter.copy_(numbers(parameter.sizes(), static_cast<std::uint64_t>(index + 1)) / 2);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (habits.others != nullptr) std::thread([n = ++*habits.others] { (void)at::rand({n}); }).join();
    const at::Tensor h = torch::tanh(linear(x));
    if (!habits.drops) return h;
    return habits.own_generators ? tensor_parallel::dropout(h, 0.5, generator) : torch::dropout(h, 0.5, true);
  }
  const int index;
  const Habits habits;
  at::Generator generator;
  torch::nn::Linear linear{nullptr};
};

LayerGraph layers(const Habits& habits) {
  LayerGraph model;
  for (int i = 0; i < count; ++i) {
    const auto build = [i, habits] {
      const auto layer = std::make_shared<Layer>(i, habits);
      return BuiltLayer{
          layer, [layer](const Values& x) { return Values{layer->forward(x[0])}; }, {layer->generator}};
    };
    model.add({"layer" + std::to_string(i), build, {i == 0 ? step_input(0) : Source{i - 1}}});
  }
  return model;
}

at::Tensor input(int number) { return numbers({rows, 6}, static_cast<std::uint64_t>(100 + number)); }
at::Tensor target(int number) { return numbers({rows, 6}, static_cast<std::uint64_t>(200 + number)); }

using Layers = std::vector<std::shared_ptr<Layer>>;

void set_frozen(const Layers& layers, bool on) {
  for (const auto& layer : layers)
    if (layer->index == 0 || layer->index == 2)
      for (at::Tensor& parameter : layer->parameters()) parameter.set_requires_grad(!on);
}

// The layers of all stages in one process, or of the stage of this rank.
class Trainer final : public sharded::testing::Trainer {
 public:
  using Backward = std::function<void(const at::Tensor& input, const at::Tensor& target, double scale)>;
  using Unscale = std::function<bool(const std::vector<at::Tensor>& gradients, double factor)>;
  Trainer(const Layers& layers, Backward backward, Unscale unscale)
      : layers_(layers), backward_(std::move(backward)), unscale_(std::move(unscale)) {}
  void backward(int number, double scale, bool) override { backward_(input(number), target(number), scale); }
  void step() override { optimizer_.step(); }
  void zero_grad() override { optimizer_.zero_grad(); }
  bool unscale(double factor) override { return unscale_(gradients(), factor); }
  void load() override {
    for (const auto& layer : layers_) {  // replaces the memory of the parameters
      std::stringstream stream;
      torch::save(std::make_shared<Layer>(layer->index + 50, Habits{}), stream);
      auto into = layer;
      torch::load(into, stream);
    }
  }
  void freeze(bool on) override { set_frozen(layers_, on); }
  std::vector<at::Tensor> leaves() override {
    std::vector<at::Tensor> all;
    for (const auto& layer : layers_)
      for (const at::Tensor& parameter : layer->parameters()) all.push_back(parameter);
    return all;
  }

 private:
  const Layers layers_;
  const Backward backward_;
  const Unscale unscale_;
  torch::optim::SGD optimizer_{leaves(), torch::optim::SGDOptions(0.1).momentum(0.9)};
};

class TrainingMatrix : public ::testing::TestWithParam<Program> {};

TEST_P(TrainingMatrix, ParametersAreThoseOfOneProcess) {
  const Program program = GetParam();
  std::atomic<int> others = 0;
  Habits habits;
  habits.drops = program == Program::dropout || program >= Program::drawing_thread;
  habits.own_generators = program != Program::drawing_thread_refused;
  if (program >= Program::drawing_thread) habits.others = &others;
  auto schedule = schedule::one_forward_one_backward({.ranks = 2, .microbatches = microbatches});
  if (program >= Program::recomputation)
    schedule = schedule::add_recomputation(schedule, schedule::Recompute::always);

  Layers one;
  for (int i = 0; i < count; ++i) one.push_back(std::make_shared<Layer>(i, habits));
  if (program == Program::unfreeze) set_frozen(one, true);
  const auto backward = [&](const at::Tensor& x, const at::Tensor& y, double scale) {
    const auto xs = x.chunk(microbatches), ys = y.chunk(microbatches);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      at::Tensor h = xs[i];
      for (const auto& layer : one) h = layer->forward(h);
      (squares({h}, {ys[i]}) * scale / microbatches).backward();
    }
  };
  Trainer whole(one, backward, unscale_alone);
  run(program, whole);

  const auto errors = errors_on_ranks(2, Backend::memory, [&](const Group& created) {
    const Group group = created.split(0).get().value();
    const StageGraph graph = cut(layers(habits), {.cuts = {2}, .built = stages_of(schedule, group.rank())});
    Layers own;
    for (const auto& child : graph[group.rank()].module->children())
      own.push_back(std::dynamic_pointer_cast<Layer>(child));
    if (program == Program::unfreeze) set_frozen(own, true);
    double scale = 1;
    const Loss loss = [&](const Values& outputs, const Values& targets) {
      return squares(outputs, targets) * scale;
    };
    GroupPipeline pipeline(created, graph, schedule, {.loss = loss, .timeout = 20s});
    Trainer trainer(
        own,
        [&](const at::Tensor& x, const at::Tensor& y, double factor) {
          scale = factor;
          pipeline.step({x}, {y});
        },
        [&](const std::vector<at::Tensor>& gradients, double factor) {
          return training::unscale_gradients(group, gradients, factor);
        });
    run(program, trainer);
    for (const auto& layer : own) {
      const auto expected = one[static_cast<std::size_t>(layer->index)]->named_parameters();
      for (const auto& each : layer->named_parameters())
        EXPECT_TRUE(at::allclose(each.value().detach(), expected[each.key()].detach(), 1e-10, 1e-10))
            << layer->index << each.key();
    }
  });
  for (const auto& error : errors) {
    ASSERT_EQ(error.has_value(), program == Program::drawing_thread_refused) << (error ? error->what() : "");
    if (error) {  // the other rank has the error of the abort, which states the cause
      EXPECT_NE(std::string(error->what()).find("another thread has drawn"), std::string::npos)
          << error->what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TrainingMatrix,
                         ::testing::Values(Program::load, Program::unfreeze, Program::accumulate,
                                           Program::overflow, Program::kept_gradient, Program::dropout,
                                           Program::recomputation, Program::drawing_thread,
                                           Program::drawing_thread_refused),
                         [](const auto& info) { return std::string(sharded::testing::name_of(info.param)); });

}  // namespace
}  // namespace weft::pipeline::training_matrix_test
