#include <weft/parallel/data_parallel/local_sgd.h>

#include <weft/parallel/data_parallel/hooks/internal/hook_state.h>
#include <weft/parallel/data_parallel/hooks/model_averager.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/optim/sgd.h>

#include <string>
#include <utility>

namespace weft::data_parallel {

MakeOptimizer nesterov(double learning_rate, double momentum) {
  return [=](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<torch::optim::SGD>(
        std::move(parameters), torch::optim::SGDOptions(learning_rate).momentum(momentum).nesterov(true));
  };
}

LocalSgd::LocalSgd(std::vector<at::Tensor> parameters, LocalSgdOptions options)
    : options_(std::move(options)), parameters_(std::move(parameters)) {
  const auto expect = [](bool valid, const std::string& what) {
    if (!valid) throw rpc::Error(rpc::ErrorKind::invalid_argument, "LocalSgd: " + what);
  };
  expect(!parameters_.empty(), "0 parameters, expected 1 or more");
  expect(options_.interval >= 1, "interval " + std::to_string(options_.interval) + ", expected 1 or more");
  expect(options_.fragments >= 1 && options_.fragments <= parameters_.size(),
         std::to_string(options_.fragments) + " fragments, expected 1 to " +
             std::to_string(parameters_.size()) + ", the number of parameters");
  expect(options_.keep >= 0 && options_.keep < 1,
         "keep " + std::to_string(options_.keep) + ", expected 0 or more, and less than 1");
  const c10::NoGradGuard no_grad;
  std::int64_t all = 0, so_far = 0;
  for (const at::Tensor& parameter : parameters_) {
    outer_.push_back(parameter.detach().clone());
    sums_.push_back(at::empty_like(outer_.back()));
    all += parameter.numel();
  }
  // Each fragment has consecutive parameters, at least one of them. The fragments have about equally many
  // elements.
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::size_t made = fragments_.size(), missing = options_.fragments - made;
    const bool full =
        so_far * static_cast<std::int64_t>(options_.fragments) >= all * static_cast<std::int64_t>(made);
    if (made == 0 || (missing > 0 && (full || parameters_.size() - i == missing))) {
      fragments_.push_back({i, i});
    }
    fragments_.back().end = i + 1;
    so_far += parameters_[i].numel();
  }
  if (options_.outer_optimizer) optimizer_ = options_.outer_optimizer(outer_);
}

LocalSgd::Range LocalSgd::due() const { return fragments_[rounds_ % fragments_.size()]; }

rpc::Future<void> LocalSgd::reduce(const collectives::Group& group) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  const Range range = due();
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (reducing_) sums_[i] = at::empty_like(outer_[i]);  // a failed attempt may have lent out the old memory
    if (optimizer_ != nullptr) {
      at::sub_out(sums_[i], outer_[i], parameters_[i].detach());
    } else {
      sums_[i].copy_(parameters_[i].detach());
    }
    sums.push_back(sums_[i]);
  }
  steps_ = 0;
  reducing_ = true;
  reduced_ = std::make_shared<std::atomic<bool>>(false);
  return average_tensors(group, sums).then([reduced = reduced_](rpc::Result<void>&& result) {
    if (result.ok()) *reduced = true;
    return std::move(result);
  });
}

void LocalSgd::apply() {
  if (!reduced_->exchange(false))
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "LocalSgd::apply: no reduction has completed since the last round: await reduce()");
  reducing_ = false;
  const c10::NoGradGuard no_grad;
  const Range range = due();
  for (std::size_t i = range.begin; i < range.end; ++i) {
    if (optimizer_ == nullptr) {
      outer_[i].copy_(sums_[i]);
    } else {
      outer_[i].mutable_grad() = sums_[i];
    }
  }
  if (optimizer_ != nullptr) {
    optimizer_->step();
    for (const at::Tensor& outer : outer_) outer.mutable_grad() = at::Tensor();  // each is stepped once
  }
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const at::Tensor parameter = parameters_[i].detach();
    if (options_.keep > 0) {
      parameter.lerp_(outer_[i], 1 - options_.keep);
    } else {
      parameter.copy_(outer_[i]);
    }
  }
  ++rounds_;
}

void LocalSgd::reset() {
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].detach().copy_(outer_[i]);
  *reduced_ = false;
  steps_ = 0;
}

void LocalSgd::save(torch::serialize::OutputArchive& archive) const {
  save_number(archive, "rounds", static_cast<std::int64_t>(rounds_));
  std::map<std::size_t, at::Tensor> outer;
  for (std::size_t i = 0; i < outer_.size(); ++i) outer[i] = outer_[i];
  save_map(archive, "outer", outer);
  if (optimizer_ == nullptr) return;
  torch::serialize::OutputArchive optimizer;
  optimizer_->save(optimizer);
  archive.write("optimizer", optimizer);
}

void LocalSgd::load(torch::serialize::InputArchive& archive) {
  const c10::NoGradGuard no_grad;
  rounds_ = static_cast<std::uint64_t>(load_number(archive, "rounds"));
  for (const auto& [i, outer] : load_map(archive, "outer")) outer_.at(i).copy_(outer);
  if (optimizer_ != nullptr) {
    torch::serialize::InputArchive optimizer;
    archive.read("optimizer", optimizer);
    optimizer_->load(optimizer);
  }
  *reduced_ = false;
  steps_ = 0;
}

}  // namespace weft::data_parallel
