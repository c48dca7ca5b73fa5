// ShadowLeaves: steps tensors that share storage with a module's parameters, by one of LibTorch's optimizers
// (one instance for each parameter group).
//
// If an optimizer steps a parameter itself, the parameter's version counter increases. The backward of every
// pass whose forward ran before the step then fails with "modified by an inplace operation". (LibTorch's SGD
// steps `.data()`: the backward then continues silently with mixed versions.) A shadow (`variable_data()`)
// has a separate version counter and a separate `.grad`: a step affects no graph and changes no user's
// `.grad`. OwnedParameters, not this class, determines which values a pass then reads.
//
// The optimizer's state (such as momentum) belongs to the shadows and stays when they move to a new storage.
//
// Owner: OwnedParameters, or a stage of a pipeline. Thread-safety: none; the owner serializes all calls.
#pragma once

#include <weft/dist_optim/local/step_target.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace weft::dist_optim {

class WEFT_EXPORT ShadowLeaves final : public StepTarget {
 public:
  // `invalid_argument` if the parameters or the spec are invalid (check_parameters, OptimizerSpec::make).
  ShadowLeaves(std::vector<Parameter> parameters, OptimizerSpec spec);
  ~ShadowLeaves() override;
  ShadowLeaves(const ShadowLeaves&) = delete;
  ShadowLeaves& operator=(const ShadowLeaves&) = delete;

  void check(const Gradients& gradients) const override;
  void step(const Gradients& gradients) override;

  // A step in parts, for gradients that become ready one after another (an optimizer that runs within the
  // backward, a bucket of ZeRO): step_one() for each parameter, then end_round(). Together they have the
  // result of one step() with all these gradients. A parameter with an undefined gradient, or without a call
  // of step_one(), is unchanged. Errors of step_one(): those of check(); `failed_precondition` if the
  // parameter has stepped in this round. Until end_round(), step(), move_to(), set_learning_rate(), state()
  // and set_state() fail with `failed_precondition`: rates and states apply once per round.
  void step_one(std::size_t index, const at::Tensor& gradient);
  void end_round() { stepped_.clear(); }

  void move_to(const std::vector<at::Tensor>& storages) override;

  // The learning rate of a parameter group, by its prefix; "": of the parameters in no group. `not_found`: no
  // group has this prefix.
  double learning_rate(const std::string& group = {}) const override;
  // Sets the learning rate of one group or of all groups. `invalid_argument` unless the rate is finite and
  // not negative.
  void set_learning_rate(double rate, const std::optional<std::string>& group = {}) override;

  // The optimizer's state and learning rates, as tensors. set_state(): `invalid_argument` if the state is
  // that of another optimizer or of other parameters; the state is then unchanged.
  OptimizerState state() const override;
  void set_state(const OptimizerState& state) override;
  void check_state(const OptimizerState& state) const override;

  const OptimizerSpec& spec() const override { return spec_; }

 private:
  // The optimizers by the prefix of their parameter group. The entry "" always exists.
  using Optimizers = std::map<std::string, std::unique_ptr<torch::optim::Optimizer>>;

  Optimizers make_optimizers() const;
  Optimizers made_from(const OptimizerState& state) const;
  torch::optim::Optimizer& optimizer_of(std::size_t parameter) const;
  torch::optim::Optimizer& optimizer_of_group(const std::string& group) const;
  void require_no_round(const char* operation) const;

  const std::vector<Parameter> parameters_;
  const OptimizerSpec spec_;
  const std::map<std::string, OptimizerSpec> specs_;  // by group
  std::vector<std::string> groups_;                   // of the parameters
  std::vector<at::Tensor> shadows_;
  Optimizers optimizers_;
  std::set<std::size_t> stepped_;  // by step_one(), in this round
};

}  // namespace weft::dist_optim
