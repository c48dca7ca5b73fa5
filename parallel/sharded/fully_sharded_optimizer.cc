#include <weft/parallel/sharded/fully_sharded_optimizer.h>

#include <utility>

namespace weft::sharded {
namespace {

std::vector<dist_optim::Parameter> leaves_of(const std::vector<ParameterSlice>& slices) {
  std::vector<dist_optim::Parameter> leaves;
  for (const ParameterSlice& slice : slices) leaves.push_back(slice.leaf);
  return leaves;
}

}  // namespace

FullyShardedOptimizer::FullyShardedOptimizer(const ShardedUnits& units, dist_optim::OptimizerSpec spec)
    : units_(units),
      slices_(units.slices()),
      leaves_(std::make_unique<dist_optim::ShadowLeaves>(leaves_of(slices_), std::move(spec))) {
  expect_groups(leaves_->spec(), units.names());
}

void FullyShardedOptimizer::set_group() {
  slices_ = units_.slices();
  auto leaves = std::make_unique<dist_optim::ShadowLeaves>(leaves_of(slices_), leaves_->spec());
  for (const auto& [group, spec] : leaves_->spec().by_group())
    leaves->set_learning_rate(leaves_->learning_rate(group), group);
  leaves_ = std::move(leaves);
}

void FullyShardedOptimizer::step() {
  dist_optim::Gradients gradients;
  for (std::size_t i = 0; i < slices_.size(); ++i)
    if (const at::Tensor& gradient = slices_[i].leaf.tensor.grad(); gradient.defined())
      gradients[i] = gradient;
  leaves_->step(gradients);
}

void FullyShardedOptimizer::zero_grad(bool set_to_none) {
  for (const ParameterSlice& slice : slices_) {
    at::Tensor& gradient = slice.leaf.tensor.mutable_grad();
    if (set_to_none) {
      gradient.reset();
    } else if (gradient.defined()) {
      gradient.zero_();
    }
  }
}

void FullyShardedOptimizer::add_to(SlicedState& state, const std::string& prefix) const {
  add_optimizer(state, leaves_->state(), slices_, prefix);
}

void FullyShardedOptimizer::add_wanted_to(SlicedState& state, const std::vector<std::string>& names,
                                          const std::string& prefix) const {
  add_wanted_optimizer(state, leaves_->spec(), slices_, names, prefix);
}

void FullyShardedOptimizer::take_from(const SlicedState& state, const std::string& prefix) {
  leaves_->set_state(optimizer_in(state, leaves_->spec().name, slices_, prefix));
}

}  // namespace weft::sharded
