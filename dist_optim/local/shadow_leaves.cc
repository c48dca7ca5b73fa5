#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/rpc/core/error.h>

#include <cmath>
#include <sstream>
#include <utility>

#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

namespace weft::dist_optim {
namespace {

constexpr const char* optimizer_key = "weft.optimizer";
constexpr const char* parameters_key = "weft.parameters";
constexpr const char* state_key = "state";

// SGD keeps its momentum in the layout of the first gradient; a gradient of another layout would fail half
// way through a step, with some parameters already changed.
bool fits_momentum(const torch::optim::Optimizer& optimizer, const at::Tensor& shadow,
                   const at::Tensor& gradient) {
  auto found = optimizer.state().find(shadow.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) return true;
  auto* state = dynamic_cast<const torch::optim::SGDParamState*>(found->second.get());
  if (state == nullptr || !state->momentum_buffer().defined()) return true;
  return state->momentum_buffer().layout() == gradient.layout();
}

}  // namespace

ShadowLeaves::ShadowLeaves(std::vector<Parameter> parameters, OptimizerSpec spec)
    : parameters_(std::move(parameters)), spec_(std::move(spec)) {
  check_parameters(parameters_);
  for (const Parameter& parameter : parameters_) shadows_.push_back(parameter.tensor.variable_data());
  optimizer_ = spec_.make(shadows_);
}

ShadowLeaves::~ShadowLeaves() = default;

void ShadowLeaves::check(const Gradients& gradients) const {
  check_gradients(parameters_, gradients, spec_.takes_sparse_gradients());
  for (const auto& [index, gradient] : gradients) {
    if (gradient.defined() && !fits_momentum(*optimizer_, shadows_[index], gradient)) {
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "the gradient of parameter " + parameters_[index].name +
                           " is sparse where its momentum is dense, or the other way about");
    }
  }
}

void ShadowLeaves::step(const Gradients& gradients) {
  check(gradients);
  struct Clear {
    std::vector<at::Tensor>& shadows;
    ~Clear() {
      for (at::Tensor& shadow : shadows) shadow.mutable_grad().reset();
    }
  } clear{shadows_};
  for (const auto& [index, gradient] : gradients) {
    // Detached, since a pass that was made for double backward has gradients with a graph of their own.
    if (gradient.defined()) shadows_[index].mutable_grad() = gradient.detach();
  }
  optimizer_->step();
}

void ShadowLeaves::move_to(const std::vector<at::Tensor>& storages) {
  // set_data keeps the shadow's TensorImpl, by which LibTorch's optimizers find their state.
  for (std::size_t i = 0; i < shadows_.size(); ++i) shadows_[i].set_data(storages.at(i));
}

double ShadowLeaves::learning_rate() const { return optimizer_->param_groups().front().options().get_lr(); }

void ShadowLeaves::set_learning_rate(double rate) {
  if (!std::isfinite(rate) || rate < 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "the learning rate must be finite and not negative");
  for (auto& group : optimizer_->param_groups()) group.options().set_lr(rate);
}

std::string ShadowLeaves::describe_parameters() const {
  std::ostringstream text;
  for (const Parameter& parameter : parameters_) {
    text << parameter.name << ' ' << parameter.tensor.scalar_type() << ' ' << parameter.tensor.sizes()
         << '\n';
  }
  return text.str();
}

std::string ShadowLeaves::save_state() const {
  torch::serialize::OutputArchive archive;
  archive.write(optimizer_key, c10::IValue(spec_.name));
  archive.write(parameters_key, c10::IValue(describe_parameters()));
  torch::serialize::OutputArchive state(archive.compilation_unit());
  optimizer_->save(state);
  archive.write(state_key, state);
  std::ostringstream bytes;
  archive.save_to(bytes);
  return std::move(bytes).str();
}

void ShadowLeaves::load_state(const std::string& bytes) {
  // Into a new optimizer over the same shadows, which takes the old one's place only when all of it could be
  // read.
  auto loaded = spec_.make(shadows_);
  std::string name, parameters;
  try {
    torch::serialize::InputArchive archive, state;
    archive.load_from(bytes.data(), bytes.size());
    c10::IValue value;
    archive.read(optimizer_key, value);
    name = value.toStringRef();
    archive.read(parameters_key, value);
    parameters = value.toStringRef();
    if (name == spec_.name && parameters == describe_parameters()) {
      archive.read(state_key, state);
      loaded->load(state);
    }
  } catch (const c10::Error& error) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "the bytes are not the state of an optimizer: " +
                                                           std::string(error.what_without_backtrace()));
  } catch (const std::exception& error) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "the bytes are not the state of an optimizer: " + std::string(error.what()));
  }
  if (name != spec_.name)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "the state is that of " + name + ", not of " + spec_.name);
  if (parameters != describe_parameters()) {
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "the state is that of other parameters:\n" + parameters + "instead of\n" + describe_parameters());
  }
  optimizer_ = std::move(loaded);
}

}  // namespace weft::dist_optim
