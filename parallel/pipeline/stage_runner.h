// StageRunner: computes the forwards and backwards of one stage, micro-batch by micro-batch.
//
// Stages exchange tensors without autograd history: backward() returns the gradients of a forward's inputs,
// and adds the gradients of parameters to the sink. A backward may be split into input_gradient() and
// weight_gradient() (NodeExecutor). Thread-safety: one call at a time.
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
  // gradients: receives the gradients of parameters; must outlive the runner. is_alone: whether no other
  // thread of the pipeline computes stages at the same time. Otherwise a recomputation restores only the
  // generators of the stage (Stage::generators).
  StageRunner(Stage stage, dist_autograd::GradientSink& gradients, bool is_alone = true);
  ~StageRunner();
  StageRunner(StageRunner&&) noexcept;
  StageRunner& operator=(StageRunner&&) = delete;

  // The data that a forward keeps for the backward.
  enum class Keep : std::uint8_t {
    nothing,      // no backward follows
    activations,  // all that the backward needs
    inputs,       // the inputs and the random generators' states, for recompute()
  };
  // Call it when the weights of the stage may have changed. It sets StepPosition::is_first_microbatch for the
  // next forward.
  void note_new_weights() { is_first_ = true; }
  // inputs: one value for each entry of Stage::inputs; if a value requires grad, the backward computes its
  // gradient. Returns the outputs of the stage. The outputs for which the backward needs gradients require
  // grad.
  Values forward(int microbatch, const Values& inputs, Keep keep);
  // Computes again a forward that ran with Keep::inputs. The random numbers are the same, and the module's
  // buffers do not change. Pass the outputs of recompute() to add_root(), not those of forward().
  // failed_precondition: an input was changed in place after the forward, or the random numbers differ,
  // because another thread has drawn from the same generator (dist_autograd::SecondRun).
  Values recompute(int microbatch);
  // Call it before the backward, for each value at which the backward starts. root: an output, or a value
  // that was computed from outputs, such as the loss. gradient: the gradient of root. If root does not
  // require grad, the call has no effect.
  void add_root(int microbatch, const at::Tensor& root, at::Tensor gradient = {});

  // Computes the gradients of inputs and weights. Returns the gradients of the inputs. A gradient is
  // undefined if the input does not require grad, or does not influence the roots.
  Values backward(int microbatch);
  // The two parts of backward(). Call input_gradient() first; it returns the gradients of the inputs.
  Values input_gradient(int microbatch);
  void weight_gradient(int microbatch);

  void clear();  // drops the kept data of all micro-batches

 private:
  struct InputGradients;
  struct Microbatch;
  StepPosition next(int microbatch);
  Values run_forward(Microbatch& state, const Values& inputs, const StepPosition& position);
  Values run(int microbatch, bool in_parts);

  const Stage stage_;
  const bool is_alone_;
  bool is_first_ = true;  // StepPosition::is_first_microbatch of the next forward
  std::map<int, std::unique_ptr<Microbatch>> microbatches_;
  dist_autograd::GradientSink& gradients_;
};

}  // namespace weft::pipeline
