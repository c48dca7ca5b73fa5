#include <weft/dist_optim/lbfgs/internal/vectors.h>
#include <weft/dist_optim/local/internal/require.h>

#include <algorithm>
#include <string>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace weft::dist_optim {
namespace {

// In double for all dtypes: coefficients come from sums of products that cancel.
at::Tensor wide(const at::Tensor& vector) { return vector.to(at::kDouble); }
double product(const at::Tensor& a, const at::Tensor& b) { return at::dot(wide(a), wide(b)).item<double>(); }
double largest(const at::Tensor& vector) {
  return vector.numel() == 0 ? 0 : vector.abs().max().item<double>();
}

rpc::Error out_of_turn(const std::string& why) {
  return {rpc::ErrorKind::failed_precondition, "L-BFGS cannot continue: " + why};
}

}  // namespace

void LbfgsMeasures::add(const LbfgsMeasures& more) {
  largest = larger(largest, more.largest);
  sum += more.sum;
  slope += more.slope;
  products.add(more.products);
}

LbfgsVectors::LbfgsVectors(OwnedParameters& owned, std::size_t history_size)
    : owned_(owned), history_size_(history_size) {
  require(history_size > 0, "L-BFGS: history_size is 0, expected at least 1");
  const auto& parameters = owned.parameters();
  for (const Parameter& parameter : parameters) {
    const at::Tensor& first = parameters.front().tensor;
    require(parameter.tensor.is_floating_point(), "L-BFGS: parameter " + parameter.name + " is of type " +
                                                      c10::toString(parameter.tensor.scalar_type()) +
                                                      ", expected a real floating-point type");
    require(
        parameter.tensor.scalar_type() == first.scalar_type() && parameter.tensor.device() == first.device(),
        "L-BFGS: parameter " + parameter.name + " is of type " +
            c10::toString(parameter.tensor.scalar_type()) + " on " + parameter.tensor.device().str() +
            ", expected " + c10::toString(first.scalar_type()) + " on " + first.device().str() +
            ", as of the first parameter");
  }
}

at::Tensor LbfgsVectors::flat(const Gradients& gradients) const {
  const auto& parameters = owned_.parameters();
  check_gradients(parameters, gradients, true);
  std::vector<at::Tensor> slices{at::empty(
      {0}, parameters.empty() ? at::TensorOptions(at::kDouble) : parameters.front().tensor.options())};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto found = gradients.find(i);
    if (found == gradients.end() || !found->second.defined()) {
      slices.push_back(at::zeros({parameters[i].tensor.numel()}, slices.front().options()));
    } else {
      const at::Tensor& gradient = found->second;
      slices.push_back((gradient.is_sparse() ? gradient.to_dense() : gradient).reshape(-1));
    }
  }
  return at::cat(slices).detach();
}

at::Tensor LbfgsVectors::parameters() const {
  const auto reading = owned_.read_newest();
  Gradients values;
  for (std::size_t i = 0; i < owned_.parameters().size(); ++i)
    values.emplace(i, owned_.parameters()[i].tensor.detach());
  return flat(values);
}

void LbfgsVectors::set_parameters(const at::Tensor& values) {
  owned_.change([&] {
    std::int64_t offset = 0;
    for (const Parameter& parameter : owned_.parameters()) {
      // OwnedParameters ensures that graphs keep the version that they have read, so the version counter does
      // not change.
      const at::Tensor to = parameter.tensor.variable_data();
      to.copy_(values.narrow(0, offset, to.numel()).view(to.sizes()));
      offset += to.numel();
    }
  });
}

LbfgsMeasures LbfgsVectors::measure(const at::Tensor& gradient) const {
  LbfgsMeasures measures;
  measures.largest = largest(gradient);
  measures.sum = wide(gradient).abs().sum().item<double>();
  if (direction_.defined()) measures.slope = product(gradient, direction_);
  return measures;
}

LbfgsProducts LbfgsVectors::products() const {
  const at::Tensor g = wide(gradient_);
  LbfgsProducts all;
  all.g_g = product(g, g);
  for (const at::Tensor& s : s_) all.s_g.push_back(product(s, g));
  for (const at::Tensor& y : y_) all.y_g.push_back(product(y, g));
  if (!new_s_.defined()) return all;
  const at::Tensor s = wide(new_s_), y = wide(new_y_);
  for (const at::Tensor& other : y_) {
    const at::Tensor old_y = wide(other);
    all.s_y.push_back(product(s, old_y));
    all.y_y.push_back(product(y, old_y));
  }
  for (const at::Tensor& other : s_) all.y_s.push_back(product(y, other));
  all.s_y.push_back(product(s, y));
  all.y_y.push_back(product(y, y));
  all.s_g.push_back(product(s, g));
  all.y_g.push_back(product(y, g));
  return all;
}

LbfgsMeasures LbfgsVectors::take(Point point, const Gradients& gradients, const std::vector<Point>& keep) {
  at::NoGradGuard no_grad;
  at::Tensor gradient = flat(gradients);
  const LbfgsMeasures measures = measure(gradient);
  std::erase_if(
      points_, [&](const auto& one) { return std::find(keep.begin(), keep.end(), one.first) == keep.end(); });
  points_.insert_or_assign(point, std::move(gradient));
  return measures;
}

LbfgsMeasures LbfgsVectors::settle(Point point) {
  at::NoGradGuard no_grad;
  const auto found = points_.find(point);
  at::Tensor chosen = point == 0 ? base_gradient_ : found != points_.end() ? found->second : at::Tensor();
  if (!chosen.defined()) throw out_of_turn("the gradient of point " + std::to_string(point) + " is missing");
  gradient_ = std::move(chosen);
  points_.clear();
  if (direction_.defined()) {
    new_s_ = direction_.mul(t_);
    new_y_ = gradient_.sub(base_gradient_);
  }
  LbfgsMeasures measures = measure(gradient_);
  measures.products = products();
  return measures;
}

double LbfgsVectors::direct(const LbfgsDirection& direction, double t, bool stay) {
  at::NoGradGuard no_grad;
  if (!gradient_.defined()) throw out_of_turn("no gradient was chosen");
  if (direction.joins && !new_s_.defined()) throw out_of_turn("there is no new pair");
  if (direction.joins) {
    if (s_.size() == history_size_) {
      s_.pop_front();
      y_.pop_front();
    }
    s_.push_back(new_s_);
    y_.push_back(new_y_);
  }
  new_s_.reset();
  new_y_.reset();
  if (direction.s_weights.size() != s_.size() || direction.y_weights.size() != s_.size())
    throw out_of_turn("the direction is not of a history of " + std::to_string(s_.size()) + " pairs");
  direction_ = gradient_.neg();
  for (std::size_t i = s_.size(); i-- > 0;) direction_.add_(y_[i], -direction.y_weights[i]);
  direction_.mul_(direction.scale);
  for (std::size_t i = 0; i < s_.size(); ++i) direction_.add_(s_[i], direction.s_weights[i]);
  base_ = parameters();
  base_gradient_ = gradient_;
  if (!start_.defined()) start_ = base_;
  if (stay) {
    t_ = t;
  } else {
    move_to(t);
  }
  return largest(direction_);
}

void LbfgsVectors::move_to(double t) {
  at::NoGradGuard no_grad;
  if (!direction_.defined()) throw out_of_turn("there is no direction");
  set_parameters(at::add(base_, direction_, t));
  t_ = t;
}

void LbfgsVectors::end_step() {
  start_.reset();
  base_.reset();
  points_.clear();
}

void LbfgsVectors::restore() {
  at::NoGradGuard no_grad;
  if (start_.defined()) set_parameters(start_);
  s_.clear();
  y_.clear();
  points_.clear();
  for (at::Tensor* vector : {&new_s_, &new_y_, &gradient_, &direction_, &base_, &base_gradient_, &start_})
    vector->reset();
  t_ = 0;
}

}  // namespace weft::dist_optim
