// Every way to compute gradients x every communication hook x every kind of module. The gradients of each
// cell are compared with those of one process, which has one copy of the module for each rank, and combines
// the gradients of the copies by the formula of the hook.
#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/pass.h>
#include <weft/parallel/data_parallel/hooks/adasum_hook.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/post_local_sgd_hook.h>
#include <weft/parallel/data_parallel/hooks/power_sgd_hook.h>
#include <weft/parallel/data_parallel/hooks/quantization_hook.h>
#include <weft/parallel/data_parallel/hooks/top_k_hook.h>
#include <weft/parallel/data_parallel/sync_batch_norm.h>

#include <cmath>
#include <tuple>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::training_matrix_test {
namespace {

using namespace testing;
using namespace std::chrono_literals;
using dist_autograd::Pass;

enum class Mode : std::uint8_t { backward, pass, two_passes };
enum class Hook : std::uint8_t { none, cast, adasum, post_local_sgd, power_sgd, quantization, top_k };
enum class Kind : std::uint8_t { plain, buffers, sync_batch_norm, unfrozen, sparse, bf16 };

constexpr int ranks = 2, batches = 4;

// The statistics of `norm` are those of this rank, or with a SyncBatchNorm those of all ranks.
struct Model : torch::nn::Module {
  Model(Kind kind, const Group* group) : kind(kind) {
    if (kind == Kind::sparse)
      bag = register_module("bag", torch::nn::EmbeddingBag(
                                       torch::nn::EmbeddingBagOptions(10, 7).mode(torch::kSum).sparse(true)));
    else
      first = register_module("first", torch::nn::Linear(5, 7));
    if (kind == Kind::sync_batch_norm && group != nullptr)
      sync = register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(7), *group));
    else if (kind == Kind::buffers || kind == Kind::sync_batch_norm)
      norm = register_module("norm", torch::nn::BatchNorm1d(7));
    middle = register_module("middle", torch::nn::Linear(7, 7));
    last = register_module("last", torch::nn::Linear(7, 3));
    to(kind == Kind::bf16 ? at::kFloat : at::kDouble);
    const at::NoGradGuard no_grad;
    std::uint64_t seed = 1;
    for (at::Tensor& parameter : this->parameters())
      parameter.copy_(at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed++), at::kDouble) / 2);
    if (kind == Kind::unfrozen) freeze(true);
  }
  void freeze(bool on) {
    for (at::Tensor& parameter : middle->parameters()) parameter.set_requires_grad(!on);
  }
  at::Tensor before_norm(const at::Tensor& x) {
    return bag ? bag((x.abs() * 3).to(at::kLong).clamp_max(9)) : first(x);
  }
  at::Tensor after_norm(const at::Tensor& h) { return last(torch::tanh(middle(torch::tanh(h)))); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = before_norm(x);
    if (norm) h = norm(h);
    if (sync) h = sync(h);
    return after_norm(h);
  }
  const Kind kind;
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  SyncBatchNorm sync{nullptr};
};

Batch batch_of(Kind kind, int number, int rank) {
  const Batch batch = Batch::of_step(number, ranks).part(rank, ranks);
  if (kind != Kind::bf16) return batch;
  return {batch.data.to(at::kFloat), batch.target.to(at::kFloat)};
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::mse_loss(output.to(target.dtype()), target);
}

// --- One process ---

// The outputs of the copies, whose rows are normalized together.
Tensors synchronized_forward(const std::vector<std::shared_ptr<Model>>& copies, const Tensors& inputs) {
  Tensors rows, outputs;
  for (std::size_t rank = 0; rank < copies.size(); ++rank)
    rows.push_back(copies[rank]->before_norm(inputs[rank]));
  auto& norm = *copies[0]->norm;  // its running statistics are those of all copies
  const Tensors normalized =
      torch::batch_norm(at::cat(rows), {}, {}, norm.running_mean, norm.running_var, true, 0.1, 1e-5, false)
          .chunk(ranks);
  for (std::size_t rank = 0; rank < copies.size(); ++rank)
    outputs.push_back(
        copies[rank]->after_norm(normalized[rank] * copies[rank]->norm->weight + copies[rank]->norm->bias));
  return outputs;
}

// By batch, rank and parameter: what this rank alone computes. Undefined: no gradient.
std::vector<std::vector<Tensors>> gradients_of_one_process(Kind kind) {
  std::vector<std::shared_ptr<Model>> copies;
  for (int rank = 0; rank < ranks; ++rank) copies.push_back(std::make_shared<Model>(kind, nullptr));
  std::vector<std::vector<Tensors>> all;
  for (int number = 0; number < batches; ++number) {
    if (kind == Kind::unfrozen && number == batches / 2)
      for (const auto& copy : copies) copy->freeze(false);
    Tensors inputs, losses;
    for (int rank = 0; rank < ranks; ++rank) inputs.push_back(batch_of(kind, number, rank).data);
    // In bfloat16, each rank computes with a converted copy of the parameters.
    std::vector<std::shared_ptr<Model>> computing = copies;
    if (kind == Kind::bf16)
      for (auto& copy : computing) {
        copy = std::make_shared<Model>(kind, nullptr);
        copy->to(at::kBFloat16);
      }
    if (kind == Kind::sync_batch_norm) {
      const Tensors outputs = synchronized_forward(copies, inputs);
      for (int rank = 0; rank < ranks; ++rank)
        losses.push_back(
            loss_of(outputs[static_cast<std::size_t>(rank)], batch_of(kind, number, rank).target));
    } else {
      for (std::size_t rank = 0; rank < ranks; ++rank)
        losses.push_back(loss_of(
            computing[rank]->forward(kind == Kind::bf16 ? inputs[rank].to(at::kBFloat16) : inputs[rank]),
            batch_of(kind, number, static_cast<int>(rank)).target));
    }
    at::stack(losses).sum().backward();
    auto& gradients = all.emplace_back();
    for (const auto& copy : computing) {
      auto& own = gradients.emplace_back();
      for (at::Tensor& parameter : copy->parameters()) {
        const at::Tensor gradient = parameter.grad();
        own.push_back(!gradient.defined()    ? gradient
                      : gradient.is_sparse() ? gradient.to_dense()
                      : kind == Kind::bf16   ? gradient.to(at::kFloat)
                                             : gradient.clone());
        parameter.mutable_grad().reset();
      }
    }
  }
  return all;
}

// --- The formulas of the hooks ---

constexpr std::int64_t block = 8;  // a gradient begins at a multiple of 64 bytes, and so of 8 elements

double ratio_of(Kind kind) {
  return kind == Kind::bf16 ? 1 : 0.5;
}  // in bfloat16, elements of a gradient are equal

at::Tensor quantized(const at::Tensor& gradient) {
  at::Tensor rows = at::zeros({(gradient.numel() + block - 1) / block * block}, gradient.options());
  rows.narrow(0, 0, gradient.numel()).copy_(gradient.reshape({-1}));
  rows = rows.view({-1, block});
  const at::Tensor least = rows.amin(1, true).clamp_max(0).to(at::kFloat);
  at::Tensor scale = (rows.amax(1, true).clamp_min(0).to(at::kFloat) - least) / 255;
  scale = scale.masked_fill(scale == 0, 1);
  const at::Tensor zero = (-least / scale).round();
  const at::Tensor levels = ((rows / scale).round() + zero).clamp(0, 255);
  return ((levels - zero) * scale)
      .view({-1})
      .narrow(0, 0, gradient.numel())
      .view_as(gradient)
      .to(gradient.dtype());
}

at::Tensor largest(const at::Tensor& gradient, double ratio) {
  const auto k = static_cast<std::int64_t>(std::ceil(ratio * static_cast<double>(gradient.numel())));
  const at::Tensor flat = gradient.reshape({-1});
  const at::Tensor chosen = std::get<1>(flat.abs().topk(k));
  return at::zeros_like(flat).scatter(0, chosen, flat.gather(0, chosen)).view_as(gradient);
}

std::shared_ptr<CommunicationHook> make(Hook hook, Kind kind) {
  switch (hook) {
    case Hook::none:
      return nullptr;
    case Hook::cast:
      return std::make_shared<CastHook>(at::kBFloat16);
    case Hook::adasum:
      return std::make_shared<AdasumHook>();
    case Hook::post_local_sgd:
      return std::make_shared<PostLocalSgdHook>(0, std::nullopt);
    case Hook::power_sgd:  // of full rank
      return std::make_shared<PowerSgdHook>(
          PowerSgdOptions{.rank = 16, .start_iteration = 0, .min_compression_rate = 1e-3});
    case Hook::quantization:
      return std::make_shared<QuantizationHook>(QuantizationOptions{.block = block});
    case Hook::top_k:
      return std::make_shared<TopKHook>(TopKOptions{.ratio = ratio_of(kind), .use_error_feedback = false});
  }
  return nullptr;
}

// What a rank gets for one parameter. of: by rank.
at::Tensor combined(Hook hook, Kind kind, const Tensors& of, int rank) {
  Tensors sent;
  for (const at::Tensor& each : of)
    sent.push_back(hook == Hook::cast           ? each.to(at::kBFloat16).to(at::kFloat)
                   : hook == Hook::quantization ? quantized(each)
                   : hook == Hook::top_k        ? largest(each, ratio_of(kind))
                                                : each);
  if (hook == Hook::adasum) return adasum(sent, 0, sent.size());
  if (hook == Hook::post_local_sgd) return sent[static_cast<std::size_t>(rank)];
  const at::Tensor average = mean(sent);
  return hook == Hook::cast ? average.to(at::kBFloat16).to(of[0].dtype()) : average;
}

// --- The cells ---

class TrainingMatrix : public ::testing::TestWithParam<std::tuple<Mode, Hook, Kind>> {
 protected:
  // Compares the gradients of a batch on a rank, and returns them with copies.
  std::vector<std::pair<at::Tensor, at::Tensor>> expect_gradients(
      const Model& model, int number, int rank,
      const std::function<at::Tensor(const at::Tensor&)>& gradient_of) const {
    std::vector<std::pair<at::Tensor, at::Tensor>> found;
    std::size_t index = 0;
    for (const auto& parameter : model.named_parameters()) {
      SCOPED_TRACE("batch " + std::to_string(number) + ", rank " + std::to_string(rank) + ", " +
                   parameter.key());
      Tensors of;
      for (const Tensors& own : expected_[static_cast<std::size_t>(number)]) of.push_back(own[index]);
      ++index;
      const at::Tensor actual = gradient_of(parameter.value());
      EXPECT_EQ(actual.defined(), of[0].defined());
      if (!actual.defined() || !of[0].defined()) continue;
      found.emplace_back(actual, actual.clone());
      // Hooks do not get sparse gradients.
      const bool is_sparse = kind_ == Kind::sparse && parameter.key() == "bag.weight";
      EXPECT_EQ(actual.is_sparse(), is_sparse);
      const at::Tensor dense = actual.is_sparse() ? actual.to_dense() : actual;
      const at::Tensor wanted = combined(is_sparse ? Hook::none : hook_, kind_, of, rank);
      const double tolerance = kind_ == Kind::bf16 ? 1e-6 : 1e-9;
      EXPECT_TRUE(at::allclose(dense, wanted, tolerance, tolerance)) << dense << "\n" << wanted;
    }
    return found;
  }

  const Mode mode_ = std::get<0>(GetParam());
  const Hook hook_ = std::get<1>(GetParam());
  const Kind kind_ = std::get<2>(GetParam());
  const std::vector<std::vector<Tensors>> expected_ = gradients_of_one_process(kind_);
  Company company_{ranks,   Backend::memory, std::make_unique<test::InProcessJobStore>(),
                   nullptr, nullptr,         [](int) { return dist_autograd::layers(); }};
};

TEST_P(TrainingMatrix, GradientsAreThoseOfOneProcess) {
  on_ranks(company_.groups({.timeout = 20s}), [&](const Group& group) {
    const int rank = group.rank();
    rpc::Agent& agent = company_.agent(rank);
    const Group norms = group.split(0).get().value();
    const auto model = std::make_shared<Model>(kind_, &norms);
    Options options{.bucket_bytes = {200, 400}};
    if (kind_ == Kind::bf16) options.mixed_precision.parameters = at::kBFloat16;
    DistributedDataParallel ddp{group, model, options};
    ddp.set_hook(make(hook_, kind_));
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;  // gradients of all batches
    const auto compare = [&](int number, const std::function<at::Tensor(const at::Tensor&)>& gradient_of) {
      for (auto& each : expect_gradients(*model, number, rank, gradient_of)) kept.push_back(std::move(each));
    };
    const auto expect_kept = [&] {
      for (const auto& [gradient, copy] : kept) EXPECT_TRUE(at::equal(gradient.to_dense(), copy.to_dense()));
    };
    const auto unfreeze = [&](int number) {
      if (kind_ == Kind::unfrozen && number == batches / 2) model->freeze(false);
    };

    if (mode_ == Mode::backward) {
      for (int number = 0; number < batches; ++number) {
        unfreeze(number);
        const Batch batch = batch_of(kind_, number, rank);
        model->zero_grad();
        loss_of(ddp.forward(batch.data), batch.target).backward();
        compare(number, [](const at::Tensor& parameter) { return parameter.grad(); });
      }
      return expect_kept();
    }
    if (kind_ == Kind::bf16) {
      Pass pass{agent};
      expect_error([&] { ddp.forward(pass, batch_of(kind_, 0, rank).data); }, ErrorKind::unsupported);
      return;
    }
    const int in_flight = mode_ == Mode::two_passes ? 2 : 1;
    for (int number = 0; number < batches; number += in_flight) {
      unfreeze(number);
      std::vector<Pass> passes;
      Tensors losses;
      for (int i = 0; i < in_flight; ++i) {
        passes.emplace_back(agent);
        ddp.attach(passes.back(), "batch " + std::to_string(number + i)).get();
        const Batch batch = batch_of(kind_, number + i, rank);
        losses.push_back(loss_of(ddp.forward(passes.back(), batch.data), batch.target));
      }
      std::vector<rpc::Future<void>> backwards;
      for (int i = 0; i < in_flight; ++i) {
        if (kind_ == Kind::sync_batch_norm) {  // its collectives have one order on all ranks
          passes[static_cast<std::size_t>(i)].backward(losses[static_cast<std::size_t>(i)]).get();
          continue;
        }
        const auto each =
            static_cast<std::size_t>(rank == 0 ? i : in_flight - 1 - i);  // begun in different orders
        backwards.push_back(passes[each].backward(losses[each]));
      }
      for (auto& backward : backwards) backward.get();
      for (int i = 0; i < in_flight; ++i)
        compare(number + i, [&](const at::Tensor& parameter) {
          return passes[static_cast<std::size_t>(i)].gradient(parameter);
        });
    }
    expect_kept();
  });
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<Mode, Hook, Kind>>& info) {
  static const char* const modes[] = {"Backward", "Pass", "TwoPasses"};
  static const char* const hooks[] = {"None",     "Cast",         "Adasum", "PostLocalSgd",
                                      "PowerSgd", "Quantization", "TopK"};
  static const char* const kinds[] = {"Plain", "Buffers", "SyncBatchNorm", "Unfrozen", "Sparse", "Bf16"};
  const auto [mode, hook, kind] = info.param;
  return std::string(modes[static_cast<std::size_t>(mode)]) + hooks[static_cast<std::size_t>(hook)] +
         kinds[static_cast<std::size_t>(kind)];
}

INSTANTIATE_TEST_SUITE_P(
    All, TrainingMatrix,
    ::testing::Combine(::testing::Values(Mode::backward, Mode::pass, Mode::two_passes),
                       ::testing::Values(Hook::none, Hook::cast, Hook::adasum, Hook::post_local_sgd,
                                         Hook::power_sgd, Hook::quantization, Hook::top_k),
                       ::testing::Values(Kind::plain, Kind::buffers, Kind::sync_batch_norm, Kind::unfrozen,
                                         Kind::sparse, Kind::bf16)),
    name_of);

}  // namespace
}  // namespace weft::data_parallel::training_matrix_test
