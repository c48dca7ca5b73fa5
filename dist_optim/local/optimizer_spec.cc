#include <weft/dist_optim/local/optimizer_spec.h>

#include <weft/dist_optim/local/internal/adadelta.h>
#include <weft/dist_optim/local/internal/adamax.h>
#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/dist_optim/local/internal/rprop.h>
#include <weft/dist_optim/local/internal/sparse_adam.h>
#include <weft/rpc/core/error.h>

#include <charconv>
#include <cmath>
#include <tuple>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace weft::dist_optim {
namespace {

[[noreturn]] void refuse(const OptimizerSpec& spec, const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "optimizer " + to_string(spec) + ": " + why);
}

// Reads a spec's options one by one, and then reports unknown ones.
class OptionReader {
 public:
  explicit OptionReader(const OptimizerSpec& spec) : spec_(spec) {}

  double number(const std::string& option) {
    auto found = spec_.options.find(option);
    if (found == spec_.options.end()) refuse(spec_, "the option " + option + " is missing");
    if (!std::isfinite(found->second)) refuse(spec_, "the option " + option + " is not finite");
    ++taken_;
    return found->second;
  }

  bool flag(const std::string& option) {
    double value = number(option);
    if (value != 0 && value != 1) refuse(spec_, "the option " + option + " is neither 0 nor 1");
    return value == 1;
  }

  void finish() const {
    if (taken_ != spec_.options.size()) refuse(spec_, "it has options that " + spec_.name + " does not have");
  }

 private:
  const OptimizerSpec& spec_;
  std::size_t taken_ = 0;
};

// The options of each optimizer, for reading and writing.
Fields fields_of(torch::optim::SGDOptions& of) {
  return {{"lr", &of.lr()},
          {"momentum", &of.momentum()},
          {"dampening", &of.dampening()},
          {"weight_decay", &of.weight_decay()},
          {"nesterov", &of.nesterov()}};
}

template <typename AdamLike>
Fields fields_of_adam(AdamLike& of) {
  auto& [beta1, beta2] = of.betas();
  return {{"lr", &of.lr()},
          {"beta1", &beta1},
          {"beta2", &beta2},
          {"eps", &of.eps()},
          {"weight_decay", &of.weight_decay()},
          {"amsgrad", &of.amsgrad()}};
}

Fields fields_of(torch::optim::AdamOptions& of) { return fields_of_adam(of); }
Fields fields_of(torch::optim::AdamWOptions& of) { return fields_of_adam(of); }

Fields fields_of(torch::optim::AdagradOptions& of) {
  return {{"lr", &of.lr()},
          {"lr_decay", &of.lr_decay()},
          {"weight_decay", &of.weight_decay()},
          {"initial_accumulator_value", &of.initial_accumulator_value()},
          {"eps", &of.eps()}};
}

Fields fields_of(torch::optim::RMSpropOptions& of) {
  return {{"lr", &of.lr()},
          {"alpha", &of.alpha()},
          {"eps", &of.eps()},
          {"weight_decay", &of.weight_decay()},
          {"momentum", &of.momentum()},
          {"centered", &of.centered()}};
}

// weft's own optimizers list their options themselves.
template <typename Options>
Fields fields_of(LocalOptions<Options>& of) {
  return static_cast<Options&>(of).fields();
}

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make_as(const OptimizerSpec& spec,
                                                 std::vector<at::Tensor> parameters) {
  OptionReader reader(spec);
  Options options(0.0);  // SGD has no default learning rate; every option is set below
  for (const Field& field : fields_of(options)) {
    if (double* const* number = std::get_if<double*>(&field.value)) **number = reader.number(field.name);
    if (bool* const* flag = std::get_if<bool*>(&field.value)) **flag = reader.flag(field.name);
  }
  reader.finish();
  try {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  } catch (const c10::Error& error) {
    refuse(spec, error.what_without_backtrace());
  }
}

template <typename Options>
std::map<std::string, double> options_of(Options from) {
  std::map<std::string, double> options;
  for (const Field& field : fields_of(from)) {
    if (double* const* number = std::get_if<double*>(&field.value)) options[field.name] = **number;
    if (bool* const* flag = std::get_if<bool*>(&field.value)) options[field.name] = **flag ? 1 : 0;
  }
  return options;
}

}  // namespace

OptimizerSpec::OptimizerSpec(const torch::optim::SGDOptions& from) : name("SGD"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const torch::optim::AdamOptions& from)
    : name("Adam"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const torch::optim::AdamWOptions& from)
    : name("AdamW"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const torch::optim::AdagradOptions& from)
    : name("Adagrad"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const torch::optim::RMSpropOptions& from)
    : name("RMSprop"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const SparseAdamOptions& from) : name("SparseAdam"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const RowwiseAdagradOptions& from)
    : name("RowwiseAdagrad"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const AdadeltaOptions& from) : name("Adadelta"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const AdamaxOptions& from) : name("Adamax"), options(options_of(from)) {}
OptimizerSpec::OptimizerSpec(const RpropOptions& from) : name("Rprop"), options(options_of(from)) {}

OptimizerSpec OptimizerSpec::with_group(std::string prefix, std::map<std::string, double> differing) const {
  OptimizerSpec more = *this;
  more.groups.push_back({std::move(prefix), std::move(differing)});
  return more;
}

std::map<std::string, OptimizerSpec> OptimizerSpec::by_group() const {
  std::map<std::string, OptimizerSpec> specs;
  OptimizerSpec& base = specs[""];
  base.name = name;
  base.options = options;
  for (const ParameterGroup& group : groups) {
    if (group.prefix.empty()) refuse(*this, "a parameter group needs a prefix");
    auto [spec, fresh] = specs.try_emplace(group.prefix, base);
    if (!fresh) refuse(*this, "there are two parameter groups " + group.prefix);
    for (const auto& [option, value] : group.options) spec->second.options[option] = value;
  }
  return specs;
}

std::string OptimizerSpec::group_of(const std::string& parameter) const {
  std::string longest;
  for (const ParameterGroup& group : groups) {
    const std::string& prefix = group.prefix;
    if (prefix.size() <= longest.size() || !parameter.starts_with(prefix)) continue;
    const char after = parameter.size() == prefix.size() ? '.' : parameter[prefix.size()];
    if (after == '.' || after == '[') longest = prefix;  // '[': a slice of it
  }
  return longest;
}

std::unique_ptr<torch::optim::Optimizer> OptimizerSpec::make(std::vector<at::Tensor> parameters) const {
  using namespace torch::optim;
  if (name == "SGD") return make_as<SGD, SGDOptions>(*this, std::move(parameters));
  if (name == "Adam") return make_as<Adam, AdamOptions>(*this, std::move(parameters));
  if (name == "AdamW") return make_as<AdamW, AdamWOptions>(*this, std::move(parameters));
  if (name == "Adagrad") return make_as<Adagrad, AdagradOptions>(*this, std::move(parameters));
  if (name == "RMSprop") return make_as<RMSprop, RMSpropOptions>(*this, std::move(parameters));
  if (name == "SparseAdam") return make_as<SparseAdam, SparseAdamOptions>(*this, std::move(parameters));
  if (name == "RowwiseAdagrad")
    return make_as<RowwiseAdagrad, RowwiseAdagradOptions>(*this, std::move(parameters));
  if (name == "Adadelta") return make_as<Adadelta, AdadeltaOptions>(*this, std::move(parameters));
  if (name == "Adamax") return make_as<Adamax, AdamaxOptions>(*this, std::move(parameters));
  if (name == "Rprop") return make_as<Rprop, RpropOptions>(*this, std::move(parameters));
  refuse(
      *this,
      "unknown optimizer, expected SGD, Adam, AdamW, Adagrad, RMSprop, SparseAdam, RowwiseAdagrad, Adadelta, "
      "Adamax or Rprop");
}

bool OptimizerSpec::takes_sparse_gradients() const {
  if (name == "SparseAdam" || name == "RowwiseAdagrad") return true;
  auto decay = options.find("weight_decay");
  return (name == "SGD" || name == "Adagrad") && (decay == options.end() || decay->second == 0);
}

bool OptimizerSpec::is_elementwise() const { return name != "SparseAdam" && name != "RowwiseAdagrad"; }

namespace {

std::string to_string(const std::map<std::string, double>& options) {
  std::string text = "(";
  for (const auto& [option, value] : options) {
    if (text.back() != '(') text += ", ";
    char digits[32];  // the shortest form that reads back as the same double
    auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    text += option + "=" + std::string(digits, end);
  }
  return text + ")";
}

}  // namespace

std::string to_string(const OptimizerSpec& spec) {
  std::string text = spec.name + to_string(spec.options);
  for (const ParameterGroup& group : spec.groups) text += " " + group.prefix + to_string(group.options);
  return text;
}

}  // namespace weft::dist_optim
