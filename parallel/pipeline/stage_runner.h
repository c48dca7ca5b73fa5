// StageRunner: computes the forwards and backwards of one stage, micro-batch by micro-batch.
//
// Stages exchange plain tensors: the inputs of a forward have no history, and their gradients are
// results of the backward. The gradients of parameters go to the sink. A backward may be split into its input
// and its weight part (NodeExecutor). Used by one thread at a time.
#pragma once

#include <weft/dist_autograd/engine/gradient_sink.h>
#include <weft/parallel/pipeline/stage_graph.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

namespace weft::pipeline {

class WEFT_EXPORT StageRunner {
 public:
  // gradients: outlives the runner.
  StageRunner(Stage stage, dist_autograd::GradientSink& gradients);
  ~StageRunner();
  StageRunner(StageRunner&&) noexcept;
  StageRunner& operator=(StageRunner&&) = delete;

  // What a forward keeps for the backward.
  enum class Keep : std::uint8_t {
    nothing,      // no backward follows
    activations,  // what the backward needs
    inputs,       // and the random generators' states, for recompute()
  };
  // The weights of the stage may have changed: StepPosition::is_first_microbatch of the next forward.
  void note_new_weights() { is_first_ = true; }
  // The values of an input, by Stage::inputs. Those that are to have gradients require grad. Returns the
  // outputs, which the caller may use as it likes; those with a gradient require grad.
  Values forward(int microbatch, const Values& inputs, Keep keep);
  // The forward again, with the same random numbers, for the backward; the module's buffers stay as they are.
  // The gradients belong to the outputs that it returns. failed_precondition: an input was changed in place.
  Values recompute(int microbatch);
  // A value that a backward starts at, an output or made of outputs, with its gradient. Before the backward.
  void add_root(int microbatch, const at::Tensor& root, at::Tensor gradient = {});

  // Whole: input and weight gradients. Returns the gradients of the inputs; undefined where an input does not
  // require grad or has no influence.
  Values backward(int microbatch);
  Values input_gradient(int microbatch);
  void weight_gradient(int microbatch);

  void clear();  // of all micro-batches

 private:
  struct InputGradients;
  struct Microbatch;
  StepPosition next(int microbatch);
  Values run_forward(Microbatch& state, const Values& inputs, const StepPosition& position);
  Values run(int microbatch, bool in_parts);

  const Stage stage_;
  bool is_first_ = true;  // no forward in this step
  std::map<int, std::unique_ptr<Microbatch>> microbatches_;
  dist_autograd::GradientSink& gradients_;
};

}  // namespace weft::pipeline
