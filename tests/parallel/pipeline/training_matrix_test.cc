// A GroupPipeline x what programs do with a module. Each cell trains a model on two ranks and in one process,
// with the same program, and compares the parameters at the end.
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/tensor_parallel/dropout.h>
#include <weft/parallel/training/unscale.h>

#include <atomic>
#include <limits>
#include <sstream>

#include "tests/parallel/pipeline/blocks.h"

namespace weft::pipeline::training_matrix_test {
namespace {

using namespace testing;
using namespace std::chrono_literals;

enum class Program : std::uint8_t {
  load,
  unfreeze,
  accumulate,
  overflow,
  kept_gradient,
  dropout,
  recomputation,
  drawing_thread,
  drawing_thread_refused
};

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

// What a program has: all stages in one process, or the stages of this rank.
struct Trainer {
  std::function<void(const at::Tensor& input, const at::Tensor& target)> backward;
  std::function<bool(std::vector<at::Tensor> gradients, double factor)> unscale;
  std::vector<std::shared_ptr<Layer>> own;
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const auto& layer : own)
      for (const at::Tensor& parameter : layer->parameters()) all.push_back(parameter);
    return all;
  }
};

void freeze(const Trainer& trainer, bool on) {
  for (const auto& layer : trainer.own)
    if (layer->index == 0 || layer->index == 2)
      for (at::Tensor& parameter : layer->parameters()) parameter.set_requires_grad(!on);
}

void run(Program program, const Trainer& trainer) {
  torch::optim::SGD optimizer(trainer.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto train = [&](int number) {
    optimizer.zero_grad();
    trainer.backward(input(number), target(number));
    optimizer.step();
  };
  switch (program) {
    case Program::load:
      train(0);
      for (const auto& layer : trainer.own) {  // replaces the memory of the parameters
        std::stringstream stream;
        torch::save(std::make_shared<Layer>(layer->index + 50, Habits{}), stream);
        auto into = layer;
        torch::load(into, stream);
      }
      break;
    case Program::unfreeze:
      for (int number = 0; number < 2; ++number) train(number);
      freeze(trainer, false);
      break;
    case Program::accumulate:
      for (int number = 0; number < 2; ++number) {
        optimizer.zero_grad();
        trainer.backward(input(10 + number), target(10 + number));
        trainer.backward(input(20 + number), target(20 + number));
        optimizer.step();
      }
      break;
    case Program::overflow:
      for (int number = 0; number < 3; ++number) {
        optimizer.zero_grad();
        at::Tensor wanted = target(number);
        if (number == 1) wanted[0][1] = std::numeric_limits<double>::infinity();
        trainer.backward(input(number), wanted);
        std::vector<at::Tensor> gradients;
        for (const at::Tensor& parameter : trainer.parameters()) gradients.push_back(parameter.grad());
        const bool finite = trainer.unscale(gradients, 4);
        EXPECT_EQ(finite, number != 1);
        if (finite) optimizer.step();
      }
      break;
    case Program::kept_gradient: {
      train(0);
      std::vector<at::Tensor> kept, copies;
      for (const at::Tensor& parameter : trainer.parameters()) kept.push_back(parameter.grad());
      for (const at::Tensor& gradient : kept) copies.push_back(gradient.clone());
      train(1);
      for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(at::equal(kept[i], copies[i])) << i;
      break;
    }
    case Program::dropout:
    case Program::recomputation:
    case Program::drawing_thread:
    case Program::drawing_thread_refused:
      break;
  }
  train(2);
}

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

  Trainer one;
  for (int i = 0; i < count; ++i) one.own.push_back(std::make_shared<Layer>(i, habits));
  if (program == Program::unfreeze) freeze(one, true);
  one.backward = [&](const at::Tensor& x, const at::Tensor& y) {
    const auto xs = x.chunk(microbatches), ys = y.chunk(microbatches);
    for (std::size_t i = 0; i < xs.size(); ++i) {
      at::Tensor h = xs[i];
      for (const auto& layer : one.own) h = layer->forward(h);
      (squares({h}, {ys[i]}) / microbatches).backward();
    }
  };
  one.unscale = [](std::vector<at::Tensor> gradients, double factor) {
    bool finite = true;
    for (at::Tensor& gradient : gradients)
      finite = gradient.div_(factor).isfinite().all().item<bool>() && finite;
    return finite;
  };
  run(program, one);

  const auto errors = errors_on_ranks(2, Backend::memory, [&](const Group& created) {
    const Group group = created.split(0).get().value();
    const StageGraph graph = cut(layers(habits), {.cuts = {2}, .built = stages_of(schedule, group.rank())});
    Trainer trainer;
    for (const auto& child : graph[group.rank()].module->children())
      trainer.own.push_back(std::dynamic_pointer_cast<Layer>(child));
    if (program == Program::unfreeze) freeze(trainer, true);
    GroupPipeline pipeline(created, graph, schedule, {.loss = squares, .timeout = 20s});
    trainer.backward = [&](const at::Tensor& x, const at::Tensor& y) { pipeline.step({x}, {y}); };
    trainer.unscale = [&](std::vector<at::Tensor> gradients, double factor) {
      return training::unscale_gradients(group, std::move(gradients), factor);
    };
    run(program, trainer);
    for (const auto& layer : trainer.own) {
      const auto expected = one.own[static_cast<std::size_t>(layer->index)]->named_parameters();
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

std::string name_of(const ::testing::TestParamInfo<Program>& info) {
  static const char* const names[] = {"Load",          "Unfreeze",      "Accumulate",
                                      "Overflow",      "KeptGradient",  "Dropout",
                                      "Recomputation", "DrawingThread", "DrawingThreadRefused"};
  return names[static_cast<std::size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(All, TrainingMatrix,
                         ::testing::Values(Program::load, Program::unfreeze, Program::accumulate,
                                           Program::overflow, Program::kept_gradient, Program::dropout,
                                           Program::recomputation, Program::drawing_thread,
                                           Program::drawing_thread_refused),
                         name_of);

}  // namespace
}  // namespace weft::pipeline::training_matrix_test
