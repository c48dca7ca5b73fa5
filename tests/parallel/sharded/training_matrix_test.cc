// Every way to train on several ranks x what programs do with a module. Each cell trains a model on two ranks
// and in one process, with the same program, and compares the parameters at the end.
#include <weft/dist_autograd/activation_checkpoint.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/sharded/sharded_optimizer.h>
#include <weft/parallel/tensor_parallel/dropout.h>
#include <weft/parallel/tensor_parallel/gradients.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/parallel/training/unscale.h>

#include <cmath>
#include <map>
#include <sstream>
#include <thread>
#include <tuple>
#include <type_traits>

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/parallel/sharded/training_programs.h"

namespace weft::sharded::training_matrix_test {
namespace {

using namespace std::chrono_literals;
using collectives::Group;
using collectives::testing::Backend;
using collectives::testing::Company;
using collectives::testing::on_ranks;
using data_parallel::testing::Batch;
using tensor_parallel::ColumnParallelLinear;
using tensor_parallel::placements;
using tensor_parallel::RowParallelLinear;
using testing::Program;
using testing::Trainer;
using Values = std::map<std::string, at::Tensor>;

enum class Way : std::uint8_t { ddp, zero1, zero2, zero3, tensor_parallel };

constexpr int ranks = 2;
constexpr std::int64_t width = 8;

// What the layers of a model do, other than the linear ones.
struct Habits {
  double dropout = 0;
  bool recompute = false;
  bool other_draws = false;  // another thread draws from the generator of the process, as a data loader does
  at::Generator generator;
};
void set_habits(Program program, Habits& habits) {
  if (program == Program::dropout || program == Program::drawing_thread) habits.dropout = 0.5;
  habits.recompute = program == Program::recomputation || program == Program::drawing_thread;
  habits.other_draws = program == Program::drawing_thread;
}

template <class Up, class Down>
struct Layer : torch::nn::Module {
  Layer(Up first, Down second, std::shared_ptr<Habits> shared) : habits(std::move(shared)) {
    up = register_module("up", first);
    down = register_module("down", second);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (habits->other_draws) std::thread([] { (void)at::rand({16}); }).join();
    const at::Tensor h = down(torch::tanh(up(x)));
    return x + (habits->dropout > 0 ? tensor_parallel::dropout(h, habits->dropout, habits->generator) : h);
  }
  Up up{nullptr};
  Down down{nullptr};
  std::shared_ptr<Habits> habits;
};

// make_up, make_down: create the linear layers of a block.
template <class Up, class Down>
struct Net : torch::nn::Module {
  template <class MakeUp, class MakeDown>
  Net(MakeUp make_up, MakeDown make_down) {
    stem = register_module("stem", torch::nn::Linear(5, width));
    for (int i = 0; i < 2; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block<Layer<Up, Down>>>(
                                                                        make_up(), make_down(), habits)));
    head = register_module("head", torch::nn::Linear(width, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = stem(x);
    for (const auto& block : blocks)
      h = habits->recompute ? dist_autograd::activation_checkpoint(*block, h, {habits->generator})
                            : block->forward(h);
    return head(h);
  }
  void freeze(bool on) {
    for (at::Tensor& parameter : blocks[0]->parameters()) parameter.set_requires_grad(!on);
  }
  const std::shared_ptr<Habits> habits = std::make_shared<Habits>();
  torch::nn::Linear stem{nullptr}, head{nullptr};
  std::vector<std::shared_ptr<Block<Layer<Up, Down>>>> blocks;
};
using Whole = Net<torch::nn::Linear, torch::nn::Linear>;
using Split = Net<ColumnParallelLinear, RowParallelLinear>;

std::shared_ptr<Whole> whole_net() {
  const auto linear = [] { return torch::nn::Linear(width, width); };
  return std::make_shared<Whole>(linear, linear);
}
std::shared_ptr<Split> split_net(const Group& group) {
  const auto drawn = at::detail::createCPUGenerator(3);  // the ranks share that of the process
  return std::make_shared<Split>(
      [&] {
        return ColumnParallelLinear(group, width, width,
                                    tensor_parallel::ColumnParallelOptions{.generator = drawn});
      },
      [&] {
        return RowParallelLinear(group, width, width,
                                 tensor_parallel::RowParallelOptions{.generator = drawn});
      });
}

Values values_of(std::uint64_t seed) {
  Values values;
  for (const auto& each : whole_net()->named_parameters())
    values[each.key()] =
        at::randn(each.value().sizes(), at::detail::createCPUGenerator(seed++), at::kDouble) / 2;
  return values;
}
const Values& initial() {
  static const Values values = values_of(1);
  return values;
}

at::Tensor part_of(const tensor_parallel::Placement& each, at::Tensor whole) {
  for (const tensor_parallel::Split& split : each.splits) whole = split.part_of(whole);
  return whole;
}
void assign(const torch::nn::Module& module, const Values& values) {
  const at::NoGradGuard no_grad;
  for (const auto& each : placements(module))
    at::Tensor(each.tensor).copy_(part_of(each, values.at(each.name)));
}
// Replaces the memory of the module's parameters, as programs that resume do.
template <class Module>
void load(const std::shared_ptr<Module>& module, const std::shared_ptr<Module>& other) {
  assign(*other, values_of(100));
  std::stringstream stream;
  torch::save(other, stream);
  auto into = module;
  torch::load(into, stream);
}

// --- Trainers ---

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output, target);
}
torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9); }
at::Generator generator_of(int rank) {
  return at::detail::createCPUGenerator(static_cast<std::uint64_t>(7 + rank));
}

template <class Module>
class WithModule : public Trainer {
 public:
  explicit WithModule(std::shared_ptr<Module> module) : model(std::move(module)) {}
  void freeze(bool on) override { model->freeze(on); }
  std::vector<at::Tensor> leaves() override { return model->parameters(); }
  const std::shared_ptr<Module> model;
};

// parts: the batches of the data parallel ranks, each with a generator.
class OneProcess final : public WithModule<Whole> {
 public:
  explicit OneProcess(int parts) : WithModule(whole_net()), optimizer_(model->parameters(), sgd()) {
    assign(*model, initial());
    for (int part = 0; part < parts; ++part) generators_.push_back(generator_of(part));
  }
  void backward(int number, double scale, bool) override {
    const int parts = static_cast<int>(generators_.size());
    for (int part = 0; part < parts; ++part) {
      model->habits->generator = generators_[static_cast<std::size_t>(part)];
      const Batch batch = Batch::of_step(number, 1, 8).part(part, parts);
      (loss_of(model->forward(batch.data), batch.target) * scale / parts).backward();
    }
  }
  void step() override { optimizer_.step(); }
  void zero_grad() override { optimizer_.zero_grad(); }
  bool unscale(double factor) override { return testing::unscale_alone(gradients(), factor); }
  void load() override { training_matrix_test::load(model, whole_net()); }

 private:
  torch::optim::SGD optimizer_;
  std::vector<at::Generator> generators_;
};

template <class Parallel, class Optimizer>
class DataParallel : public WithModule<Whole> {
 public:
  DataParallel(const Group& group, std::shared_ptr<Whole> module, const auto& options)
      : WithModule(std::move(module)), parallel(group, model, options) {}
  void backward(int number, double scale, bool sync) override {
    if (!sync) {
      const auto guard = parallel.no_sync();
      return backward(number, scale, true);
    }
    const int rank = parallel.group().rank();
    const Batch batch = Batch::of_step(number, 1, 8).part(rank, ranks);
    (loss_of(parallel.forward(batch.data), batch.target) * (rank == 0 || std::isfinite(scale) ? scale : 1))
        .backward();
  }
  void step() override { optimizer_.step(); }
  void zero_grad() override { optimizer_.zero_grad(); }
  bool unscale(double factor) override {
    return training::unscale_gradients(parallel.group(), gradients(), factor);
  }
  void load() override { training_matrix_test::load(model, whole_net()); }
  Parallel parallel;

 private:
  Optimizer made() {
    if constexpr (std::is_same_v<Optimizer, torch::optim::SGD>) {
      return Optimizer(model->parameters(), sgd());
    } else {
      return Optimizer(parallel, sgd());
    }
  }
  Optimizer optimizer_ = made();
};
using DdpModule = data_parallel::DistributedDataParallel<Whole>;
using Ddp = DataParallel<DdpModule, torch::optim::SGD>;
using Zero1 = DataParallel<DdpModule, ShardedOptimizer>;

class Fsdp final : public DataParallel<FullyShardedDataParallel<Whole>, FullyShardedOptimizer> {
 public:
  using DataParallel::DataParallel;
  void load() override {
    const auto guard = parallel.gather(Changes::kept);
    DataParallel::load();
  }
  std::vector<at::Tensor> leaves() override { return parallel.parameters(); }
};

class Tensors final : public WithModule<Split> {
 public:
  Tensors(const Group& group, std::shared_ptr<Split> module) : WithModule(std::move(module)), group_(group) {}
  void backward(int number, double scale, bool) override {
    const Batch batch = Batch::of_step(number, 1, 8);
    (loss_of(model->forward(batch.data), batch.target) * scale).backward();
  }
  void step() override { optimizer_.step(); }
  void zero_grad() override { optimizer_.zero_grad(); }
  bool unscale(double factor) override {
    return tensor_parallel::unscale_gradients(placements(*model), {group_}, factor);
  }
  void load() override { training_matrix_test::load(model, split_net(group_)); }

 private:
  const Group group_;
  torch::optim::SGD optimizer_{model->parameters(), sgd()};
};

class TrainingMatrix : public ::testing::TestWithParam<std::tuple<Way, Program>> {
 protected:
  const Way way_ = std::get<0>(GetParam());
  const Program program_ = std::get<1>(GetParam());
};

TEST_P(TrainingMatrix, ParametersAreThoseOfOneProcess) {
  const bool is_split = way_ == Way::tensor_parallel;
  OneProcess one(is_split ? 1 : ranks);
  set_habits(program_, *one.model->habits);
  if (program_ == Program::unfreeze) one.freeze(true);
  run(program_, one);
  Values expected;
  for (const auto& each : one.model->named_parameters()) expected[each.key()] = each.value().detach();

  Company company(ranks, Backend::memory);
  const auto groups = company.groups({.timeout = 20s});
  on_ranks(groups, [&](const Group& group) {
    const auto prepare = [&](auto model) {
      assign(*model, initial());
      if (program_ == Program::unfreeze) model->freeze(true);
      set_habits(program_, *model->habits);
      model->habits->generator = generator_of(is_split ? 0 : group.rank());
      return model;
    };
    const auto compare = [&](const torch::nn::Module& model) {
      for (const auto& each : placements(model))
        EXPECT_TRUE(at::allclose(each.tensor.detach(), part_of(each, expected.at(each.name)), 1e-10, 1e-10))
            << each.name << "\n"
            << each.tensor << "\n"
            << expected.at(each.name);
    };
    switch (way_) {
      case Way::ddp: {
        Ddp trainer(group, prepare(whole_net()), data_parallel::Options{.bucket_bytes = {400}});
        run(program_, trainer);
        return compare(*trainer.model);
      }
      case Way::zero1: {
        Zero1 trainer(group, prepare(whole_net()), data_parallel::Options{.bucket_bytes = {400}});
        run(program_, trainer);
        return compare(*trainer.model);
      }
      case Way::zero2:
      case Way::zero3: {
        Fsdp trainer(group, prepare(whole_net()), Options{.reshard_after_forward = way_ == Way::zero3});
        run(program_, trainer);
        const auto whole = trainer.parallel.gather();
        return compare(*trainer.model);
      }
      case Way::tensor_parallel: {
        Tensors trainer(group, prepare(split_net(group)));
        run(program_, trainer);
        return compare(*trainer.model);
      }
    }
  });
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Way, Program>>& info) {
  static const char* const ways[] = {"Ddp", "Zero1", "Zero2", "Zero3", "TensorParallel"};
  const auto [way, program] = info.param;
  return std::string(ways[static_cast<std::size_t>(way)]) + testing::name_of(program);
}

INSTANTIATE_TEST_SUITE_P(
    All, TrainingMatrix,
    ::testing::Combine(::testing::Values(Way::ddp, Way::zero1, Way::zero2, Way::zero3, Way::tensor_parallel),
                       ::testing::Values(Program::load, Program::unfreeze, Program::accumulate,
                                         Program::overflow, Program::kept_gradient, Program::dropout,
                                         Program::recomputation, Program::drawing_thread)),
    name_of);

}  // namespace
}  // namespace weft::sharded::training_matrix_test
