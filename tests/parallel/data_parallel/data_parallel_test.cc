#include <weft/parallel/data_parallel/data_parallel.h>

#include <chrono>
#include <condition_variable>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::data_parallel_test {
namespace {

using namespace testing;
using namespace std::chrono_literals;

std::vector<at::Device> threads(std::size_t number) { return std::vector(number, at::Device(at::kCPU)); }

struct Layers : torch::nn::Cloneable<Layers> {
  Layers() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(5, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    last = register_module("last", torch::nn::Linear(4, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (parts != 0) {  // all parts are in forward at the same time
      std::unique_lock lock(mutex);
      ++running;
      changed.notify_all();
      EXPECT_TRUE(changed.wait_for(lock, 1min, [] { return running >= parts; }));
    }
    return last(torch::tanh(normalizes ? norm(first(x)) : first(x)));
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  static inline bool normalizes = false;
  static inline std::size_t parts = 0;
  static inline std::mutex mutex;  // guards running
  static inline std::condition_variable changed;
  static inline std::size_t running = 0;
};

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters())
    if (parameter.grad().defined()) gradients.push_back(parameter.grad().clone());
  return gradients;
}

TEST(DataParallel, EqualsTheModuleOnTheWholeBatch) {
  for (const std::size_t parts : {1, 2, 3, 4}) {
    auto module = std::make_shared<Layers>();
    DataParallel model{module, threads(parts)};
    torch::optim::SGD optimizer(module->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {  // the clones take over what the optimizer changes
      const Batch batch = Batch::of_step(step, 3);
      module->zero_grad();
      torch::mse_loss(module->forward(batch.data), batch.target).backward();
      const auto alone = gradients_of(*module);
      module->zero_grad();
      Layers::running = 0;
      Layers::parts = parts;
      const at::Tensor y = model.forward(batch.data);
      Layers::parts = 0;
      torch::mse_loss(y, batch.target).backward();
      expect_close(gradients_of(*module), alone);
      optimizer.step();
    }
  }
}

TEST(DataParallel, TheModuleKeepsTheStatisticsOfTheFirstPart) {
  Layers::normalizes = true;
  auto module = std::make_shared<Layers>();
  auto alone = std::dynamic_pointer_cast<Layers>(module->clone());
  DataParallel model{module, threads(2)};
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = Batch::of_step(step, 2).data;
    model.forward(x);
    alone->forward(x.chunk(2)[0]);
  }
  Layers::normalizes = false;
  expect_close({module->norm->running_mean, module->norm->running_var},
               {alone->norm->running_mean, alone->norm->running_var});
  EXPECT_EQ(module->norm->num_batches_tracked.item<int>(), 3);
}

TEST(DataParallel, ASmallBatchHasFewerParts) {
  auto module = std::make_shared<Layers>();
  DataParallel model{module, threads(4)};
  const at::Tensor x = Batch::of_step(0, 1, 3).data;
  expect_close({model.forward(x)}, {module->forward(x)});
  expect_close({model.forward(x.slice(0, 0, 1))}, {module->forward(x.slice(0, 0, 1))});
}

TEST(DataParallel, AcceptsHoldersAndUsesTheModeOfTheModule) {
  torch::nn::Sequential layers(torch::nn::Linear(5, 4), torch::nn::Dropout(0.9));
  layers->to(at::kDouble);
  layers->eval();
  DataParallel<torch::nn::SequentialImpl> model{layers, threads(2)};
  const at::NoGradGuard no_grad;
  const at::Tensor x = Batch::of_step(0, 1).data, y = model.forward(x);
  expect_close({y}, {layers->forward(x)});
  EXPECT_FALSE(y.requires_grad());
}

// The parts use the modes of the module's own parts, also after these change.
TEST(DataParallel, SubmodulesMayHaveOtherModesThanTheModule) {
  auto module = std::make_shared<Layers>();
  Layers::normalizes = true;
  DataParallel model{module, threads(3)};
  const at::Tensor x = Batch::of_step(0, 3).data;
  for (const bool frozen : {true, false, true}) {
    module->train();
    module->norm->eval();
    if (!frozen) module->norm->train(), module->last->eval();
    std::vector<at::Tensor> parts;
    const auto mean = module->norm->running_mean.clone(), var = module->norm->running_var.clone();
    for (const at::Tensor& part : x.chunk(3)) {
      parts.push_back(module->forward(part));
      const at::NoGradGuard no_grad;
      module->norm->running_mean.copy_(mean), module->norm->running_var.copy_(var);
    }
    expect_close({model.forward(x)}, {at::cat(parts)});
  }
  Layers::normalizes = false;
}

struct Sees : torch::nn::Cloneable<Sees> {
  Sees() { reset(); }
  void reset() override { w = register_parameter("w", at::ones({1, 2}, at::kDouble)); }
  at::Tensor forward(const at::Tensor& x) {
    std::lock_guard lock(mutex);
    seen.push_back(w);
    return x * w;
  }
  at::Tensor w;
  static inline std::mutex mutex;  // guards seen
  static inline std::vector<at::Tensor> seen;
};

TEST(DataParallel, CopiesOfFrozenParametersGetNoGradients) {
  auto module = std::make_shared<Sees>();
  DataParallel model{module, threads(2)};
  const at::Tensor x = at::ones({4, 2}, at::kDouble).requires_grad_();
  for (const bool frozen : {true, false, true}) {
    module->w.requires_grad_(!frozen);
    module->zero_grad();
    Sees::seen.clear();
    model.forward(x).sum().backward();
    ASSERT_EQ(Sees::seen.size(), 2U);
    for (const at::Tensor& w : Sees::seen) EXPECT_EQ(w.requires_grad(), !frozen);
    EXPECT_EQ(module->w.grad().defined(), !frozen);
    if (!frozen) expect_close({module->w.grad()}, {at::full({1, 2}, 4, at::kDouble)});
  }
  Sees::seen.clear();
}

struct Fails : torch::nn::Cloneable<Fails> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x) {
    if (x.max().item<double>() > 2) throw std::runtime_error("a planted fault");
    return x.sum();
  }
};

TEST(DataParallel, AFailureOfAPartFailsTheForward) {
  DataParallel model{std::make_shared<Fails>(), threads(3)};
  EXPECT_THROW(model.forward(at::arange(6, at::kDouble)), std::runtime_error);
  const at::Tensor sums = model.forward(at::ones({6}, at::kDouble));  // scalars become a vector
  expect_close({sums}, {at::full({3}, 2, at::kDouble)});
}

TEST(DataParallel, RefusesAnEmptyListOfDevices) {
  expect_error([] { DataParallel(std::make_shared<Layers>(), {}); }, ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::data_parallel::data_parallel_test
