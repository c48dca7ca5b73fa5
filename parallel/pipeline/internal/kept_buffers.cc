#include <weft/parallel/pipeline/internal/kept_buffers.h>

#include <weft/rpc/core/error.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

namespace weft::pipeline {

KeptBuffers::KeptBuffers(const torch::nn::Module& module) {
  for (const at::Tensor& buffer : module.buffers())
    buffers_.push_back({buffer, buffer.detach().clone(), static_cast<std::uint32_t>(buffer._version())});
}

void KeptBuffers::restore() const {
  const at::NoGradGuard no_grad;
  for (const BufferCopy& kept : buffers_) {
    if (kept.buffer.sizes() != kept.before.sizes())
      throw rpc::Error(
          rpc::ErrorKind::failed_precondition,
          c10::str("the forward changes the shape of a buffer from ", kept.before.sizes(), " to ",
                   kept.buffer.sizes(), ", which a recomputation cannot undo: expected equal shapes"));
    if (kept.buffer.scalar_type() == kept.before.scalar_type() && at::equal(kept.buffer, kept.before))
      continue;
    // Batch norms change their statistics without a new version, since no backward uses them. After other
    // changes, autograd must find a new version in graphs that have saved the buffer.
    const bool has_new_version = kept.buffer._version() != kept.version;
    (has_new_version ? kept.buffer : kept.buffer.variable_data()).copy_(kept.before);
  }
}

}  // namespace weft::pipeline
