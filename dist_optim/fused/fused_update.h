// One step of SGD, Adam or AdamW over lists of pieces, in one pass over each piece's memory.
//
// The arithmetic is that of LibTorch's optimizers, in the pieces' own type, each operation rounded by itself.
// Pieces are contiguous: a parameter, its gradient and the state of the optimizer for it, which the caller
// owns and which none other overlaps. Options and the count of steps are of a call: parameters that differ in
// them are calls of their own. The functions with a stream do the same on a GPU, bit for bit but for the
// payload of a NaN; they exist where weft is built with WEFT_CUDA, put kernels on the stream and return.
// invalid_argument for what cannot be, failed_precondition where CUDA refuses. Thread-safe.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/tensor/kernel/host_device.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::dist_optim::fused {

enum class Element : std::uint8_t { float32, float64 };

struct Sgd {
  double lr;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool first = false;  // the momentum holds nothing yet: it becomes the gradient
};
struct SgdPiece {
  void* parameter;
  const void* gradient;
  void* momentum;  // null without momentum
  std::size_t count;
};

struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  // AdamW: the decay is of the parameter itself, not part of its gradient
  bool amsgrad = false;
  bool maximize = false;
  std::int64_t step = 1;  // of this step; the first is 1
};
struct AdamPiece {
  void* parameter;
  const void* gradient;
  void* exp_avg;  // these begin as zeros
  void* exp_avg_sq;
  void* max_exp_avg_sq;  // null without amsgrad
  std::size_t count;
};

WEFT_EXPORT void step(const Sgd& options, Element type, std::span<const SgdPiece> pieces);
WEFT_EXPORT void step(const Adam& options, Element type, std::span<const AdamPiece> pieces);

// On the device that is CUDA's current one, which the stream is of; memory is that device's.
WEFT_EXPORT void step(const Sgd& options, Element type, std::span<const SgdPiece> pieces,
                      CUstream_st* stream);
WEFT_EXPORT void step(const Adam& options, Element type, std::span<const AdamPiece> pieces,
                      CUstream_st* stream);

}  // namespace weft::dist_optim::fused
