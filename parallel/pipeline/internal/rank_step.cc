#include <weft/parallel/pipeline/internal/rank_step.h>

#include <weft/dist_autograd/engine/internal/accumulate_gradient.h>
#include <weft/parallel/pipeline/internal/ties.h>
#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace weft::pipeline {

using rpc::Error;
using rpc::ErrorKind;
using schedule::Action;
using schedule::Edge;
using schedule::Op;

namespace {

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

}  // namespace

void Activities::set(int rank, std::string action) {
  rpc::MutexLock lock(mutex_);
  actions_[static_cast<std::size_t>(rank)] = std::move(action);
}

std::string Activities::text() const {
  rpc::MutexLock lock(mutex_);
  std::string text;
  for (std::size_t rank = 0; rank < actions_.size(); ++rank)
    if (!actions_[rank].empty())
      text += (text.empty() ? "rank " : ", rank ") + std::to_string(rank) + " computes " + actions_[rank];
  return text.empty() ? "no rank computes" : text;
}

RankStep::RankStep(StepContext& step, std::map<int, StageRunner>& runners, int rank)
    : step_(step),
      runners_(runners),
      rank_(rank),
      actions_(step.schedule.ranks[static_cast<std::size_t>(rank)]),
      device_(step.devices.empty() ? std::nullopt
                                   : std::optional(step.devices[static_cast<std::size_t>(rank)])) {
  for (const Action& each : actions_)
    schedule::for_each_part(each, [&](const Action& action) {
      if (action.op == Op::forward) runners_.at(action.stage).note_new_weights();
      if (action.op == Op::recompute) recomputed_.insert({action.stage, action.microbatch});
    });
  for (std::size_t i = 0; i < actions_.size(); ++i)
    if (!step.with_backward && actions_[i].op == Op::unshard && !is_for_a_forward(i)) unused_.insert(i);
}

// Uses only the schedule and not the number of micro-batches, which may differ between ranks that gather
// together.
bool RankStep::is_for_a_forward(std::size_t unshard) const {
  const int stage = actions_[unshard].stage;
  bool is_used = false;
  for (std::size_t i = unshard + 1; i < actions_.size(); ++i) {
    if (actions_[i].op == Op::reshard && actions_[i].stage == stage) break;
    schedule::for_each_part(actions_[i], [&](const Action& action) {
      is_used = is_used || (action.op == Op::forward && action.stage == stage);
    });
  }
  return is_used;
}

std::vector<schedule::Span> RankStep::run() {
  const c10::OptionalDeviceGuard on_device(device_);
  std::vector<schedule::Span> spans;
  for (std::size_t i = 0; i < actions_.size() && step_.exchange->error() == nullptr; ++i) {
    if (unused_.contains(i)) continue;
    started_.reset();
    schedule::for_each_part(actions_[i], [&](const Action& action) { run(action); });
    if (started_) spans.push_back({i, *started_, seconds()});
  }
  if (step_.with_backward && step_.exchange->error() == nullptr) add_ties();
  return spans;
}

double RankStep::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - step_.began).count();
}

void RankStep::run(const Action& action) {
  if (action.op == Op::idle || action.microbatch >= static_cast<int>(step_.data.count())) return;
  const bool is_in_evaluation =
      action.op == Op::forward || action.op == Op::unshard || action.op == Op::reshard;
  if (!step_.with_backward && !is_in_evaluation) return;
  const auto fail = [&](ErrorKind kind) {
    std::string text = "pipeline step: stage " + std::to_string(action.stage);
    if (action.microbatch >= 0) text += ", micro-batch " + std::to_string(action.microbatch);
    text += ", " + std::string(schedule::name_of(action.op)) + ": " + text_of_current_exception();
    if (kind == ErrorKind::deadline_exceeded && step_.activities != nullptr)
      text += ": " + step_.activities->text();
    step_.exchange->fail(std::make_exception_ptr(Error(kind, text)));
  };
  try {
    schedule::is_computation(action.op) ? compute(action) : run_parameters(action);
  } catch (const Error& error) {
    // The kind `aborted` is reserved for errors with another cause, as in a reduction that another rank has
    // aborted.
    const bool is_cause = schedule::is_computation(action.op) && step_.exchange->error() == nullptr;
    fail(is_cause && error.kind() == ErrorKind::aborted ? ErrorKind::handler_failed : error.kind());
  } catch (...) {
    fail(ErrorKind::handler_failed);
  }
  if (step_.activities != nullptr) step_.activities->set(rank_, "");
}

void RankStep::compute(const Action& action) {
  StageRunner& runner = runners_.at(action.stage);
  if (action.op == Op::forward) return forward(runner, action);
  if (action.op == Op::recompute) return recompute(runner, action);
  if (action.op != Op::weight_gradient) take_gradients(runner, action.stage, action.microbatch);
  begins(action);
  Values gradients;
  step_.within([&] {
    if (action.op == Op::weight_gradient) return runner.weight_gradient(action.microbatch);
    gradients = action.op == Op::backward ? runner.backward(action.microbatch)
                                          : runner.input_gradient(action.microbatch);
  });
  if (action.op != Op::weight_gradient) give_gradients(action.stage, action.microbatch, gradients);
}

void RankStep::run_parameters(const Action& action) {
  if (step_.parameters == nullptr) return;
  if (action.op == Op::optimizer_step) begins(action);
  step_.parameters->at(action.stage).run(action, step_.data.weights);
  if (action.op == Op::optimizer_step || action.op == Op::load) runners_.at(action.stage).note_new_weights();
}

void RankStep::begins(const Action& action) {
  if (step_.parameters != nullptr) step_.parameters->at(action.stage).make_whole();
  if (!started_) started_ = seconds();
  if (step_.activities != nullptr) step_.activities->set(rank_, schedule::to_string(action));
}

at::Tensor RankStep::here(const at::Tensor& tensor) const {
  if (!device_ || !tensor.defined()) return tensor;
  return tensor.detach().to(*device_).set_requires_grad(tensor.requires_grad());
}

// --- Forward ---

Values RankStep::inputs_of(int stage, int microbatch) {
  std::map<Source, at::Tensor> values;
  for (const Edge& edge : step_.schedule.edges) {
    if (edge.to != stage) continue;
    const Values came = step_.exchange->take({edge, microbatch, false}, step_.timeout);
    const auto outputs = step_.graph.outputs_of(edge);
    for (std::size_t i = 0; i < outputs.size(); ++i) values[{edge.from, outputs[i]}] = here(came[i]);
  }
  const Values& own = step_.data.inputs[static_cast<std::size_t>(microbatch)];
  Values inputs;
  for (const Source& source : step_.graph[stage].inputs) {
    if (source.from < 0 && source.output >= static_cast<int>(own.size()))
      throw Error(ErrorKind::invalid_argument, "the step has " + std::to_string(own.size()) +
                                                   " inputs, and the stage uses input " +
                                                   std::to_string(source.output) + ", expected at least " +
                                                   std::to_string(source.output + 1) + " inputs");
    if (source.from >= 0) {
      inputs.push_back(values.at(source));
      continue;
    }
    const at::Tensor input = here(own[static_cast<std::size_t>(source.output)]);
    const bool converts = step_.input_type && input.is_floating_point();
    inputs.push_back(converts ? input.to(*step_.input_type) : input);
  }
  return inputs;
}

void RankStep::forward(StageRunner& runner, const Action& action) {
  const int stage = action.stage, microbatch = action.microbatch;
  const Values inputs = inputs_of(stage, microbatch);
  begins(action);
  const bool recomputes = recomputed_.contains({stage, microbatch});
  Values outputs;
  step_.within([&] {
    outputs = runner.forward(microbatch, inputs,
                             !step_.with_backward ? StageRunner::Keep::nothing
                             : recomputes         ? StageRunner::Keep::inputs
                                                  : StageRunner::Keep::activations);
  });
  for (const Edge& edge : step_.schedule.edges)
    if (edge.from == stage) step_.send({edge, microbatch, false}, sent(edge, outputs));
  const bool is_last = stage + 1 == step_.graph.size();
  if (is_last && step_.with_backward && !recomputes) add_loss(runner, microbatch, outputs);
  if (step_.with_backward && !recomputes) {
    outputs_[{stage, microbatch}] = std::move(outputs);
  } else if (is_last && !step_.with_backward) {
    for (at::Tensor& output : outputs)
      if (shares_gathered_memory(stage, output)) output = output.clone();
    step_.outputs[static_cast<std::size_t>(microbatch)] = std::move(outputs);
  }
}

bool RankStep::shares_gathered_memory(int stage, const at::Tensor& output) const {
  return step_.parameters != nullptr && step_.parameters->at(stage).shares_gathered_memory(output);
}

// Returns tensors without history, which require grad if the backward needs their gradient. Only one stage
// gets the output's own memory, which an operator of that stage may change in place; other stages get
// copies.
Values RankStep::sent(const Edge& edge, const Values& outputs) const {
  Values values;
  for (const int output : step_.graph.outputs_of(edge)) {
    if (output >= static_cast<int>(outputs.size()))
      throw Error(ErrorKind::invalid_argument,
                  "the stage gives " + std::to_string(outputs.size()) + " outputs, and stage " +
                      std::to_string(edge.to) + " uses output " + std::to_string(output) +
                      ", expected at least " + std::to_string(output + 1) + " outputs");
    const at::Tensor& value = outputs[static_cast<std::size_t>(output)];
    const bool is_original = gets_original(edge, output) && !shares_gathered_memory(edge.from, value);
    const at::Tensor plain = is_original ? value.detach() : value.detach().clone();
    values.push_back(plain.set_requires_grad(step_.with_backward && value.requires_grad()));
  }
  return values;
}

// The last edge in the order of sending gets the original, so that all copies are taken before its stage
// begins.
bool RankStep::gets_original(const Edge& edge, int output) const {
  for (const Edge& other : step_.schedule.edges) {
    if (other.from != edge.from || other <= edge) continue;
    const auto used = step_.graph.outputs_of(other);
    if (std::find(used.begin(), used.end(), output) != used.end()) return false;
  }
  return true;
}

void RankStep::recompute(StageRunner& runner, const Action& action) {
  begins(action);
  Values outputs;
  step_.within([&] { outputs = runner.recompute(action.microbatch); });
  if (action.stage + 1 == step_.graph.size()) add_loss(runner, action.microbatch, outputs);
  outputs_[{action.stage, action.microbatch}] = std::move(outputs);
}

void RankStep::add_loss(StageRunner& runner, int microbatch, const Values& outputs) {
  const auto at = static_cast<std::size_t>(microbatch);
  Values targets;
  for (const at::Tensor& target : step_.data.targets[at]) targets.push_back(here(target));
  const at::AutoGradMode grad(true);
  const at::Tensor loss = step_.loss(outputs, targets);
  if (loss.numel() != 1)
    throw Error(ErrorKind::invalid_argument,
                "the loss has " + std::to_string(loss.numel()) + " elements, expected one");
  step_.losses[at] = loss.detach();
  runner.add_root(microbatch, loss, at::full_like(loss.detach(), step_.data.weights[at]));
}

// --- Backward ---

void RankStep::take_gradients(StageRunner& runner, int stage, int microbatch) {
  const Values outputs = std::move(outputs_.extract({stage, microbatch}).mapped());
  for (const Edge& edge : step_.schedule.edges) {
    if (edge.from != stage) continue;
    const Values came = step_.exchange->take({edge, microbatch, true}, step_.timeout);
    const auto used = step_.graph.outputs_of(edge);
    for (std::size_t i = 0; i < used.size(); ++i)
      if (came[i].defined())
        runner.add_root(microbatch, outputs[static_cast<std::size_t>(used[i])], here(came[i]));
  }
}

void RankStep::give_gradients(int stage, int microbatch, const Values& gradients) {
  const auto& inputs = step_.graph[stage].inputs;
  for (const Edge& edge : step_.schedule.edges) {
    if (edge.to != stage) continue;
    Values sums;
    for (const int output : step_.graph.outputs_of(edge)) {
      at::Tensor sum;  // over the inputs that are this output
      for (std::size_t i = 0; i < inputs.size(); ++i)
        if (inputs[i] == Source{edge.from, output} && gradients[i].defined())
          sum = sum.defined() ? sum + gradients[i] : gradients[i];
      // Another stage, or the gradient of a leaf, may have the same memory.
      sums.push_back(!sum.defined() || dist_autograd::owns_memory(sum) ? sum : sum.clone());
    }
    step_.send({edge, microbatch, true}, std::move(sums));
  }
}

// --- Tied parameters ---

void RankStep::add_ties() {
  for (std::size_t tie = 0; tie < step_.graph.ties().size(); ++tie) {
    const auto fail = [&](ErrorKind kind) {
      step_.exchange->fail(std::make_exception_ptr(Error(kind, "pipeline step: the tied parameter " +
                                                                   step_.graph.ties()[tie][0].name + ": " +
                                                                   text_of_current_exception())));
    };
    try {
      add(tie);
    } catch (const Error& error) {
      return fail(error.kind());
    } catch (...) {
      return fail(ErrorKind::handler_failed);
    }
  }
}

void RankStep::add(std::size_t tie) {
  std::vector<std::pair<int, at::Tensor>> own;  // stages and parameters
  for (const StageParameter& each : step_.graph.ties()[tie])
    if (step_.schedule.rank_of(each.stage, 0) == rank_)
      own.emplace_back(each.stage, step_.graph.parameter(each));
  if (own.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor first = own.front().second;  // its device is that of the sums
  at::Tensor own_sum, sum;
  int home = own.front().first;
  for (const auto& [stage, parameter] : own) {
    home = std::min(home, stage);
    if (const at::Tensor gradient = step_.parameters->at(stage).gradients().take(parameter);
        gradient.defined())
      dist_autograd::accumulate_gradient(first, own_sum, gradient.to(first.device()), 0);
  }
  const std::vector<int> homes = homes_of(step_.graph.ties()[tie], step_.schedule);
  for (const int other : homes)
    if (other != home) step_.send(tie_message(step_.schedule, tie, home, other), {own_sum});
  for (const int other : homes) {
    const at::Tensor part =
        other == home
            ? own_sum
            : step_.exchange->take(tie_message(step_.schedule, tie, other, home), step_.timeout).at(0);
    if (!part.defined()) continue;
    if (part.sizes() != first.sizes())
      throw Error(ErrorKind::invalid_argument, "a gradient of sizes " + c10::str(part.sizes()) +
                                                   " from stage " + std::to_string(other) + ", expected " +
                                                   c10::str(first.sizes()));
    dist_autograd::accumulate_gradient(first, sum, part.to(first.device()), 0);
  }
  if (!sum.defined()) return;
  for (const auto& [stage, parameter] : own)
    step_.parameters->at(stage).gradients().accumulate(parameter, sum.to(parameter.device()), 0);
}

}  // namespace weft::pipeline
