// How tensors travel: as a record {dtype, shape, data} whose data is an attachment read straight into the
// received tensor's storage, or inline up to 1 KiB.
//
// A view sends its elements, not its storage; expanded dimensions travel as one element; conj and neg are
// resolved; aliasing between arguments is not kept. A tensor that is not contiguous but without gaps
// (transposed, channels_last) arrives with its strides, which costs a copy on either side; others arrive
// contiguous. Undefined, zero-size, 0-d, non-dense, complex, fp8, COO
// and CSR tensors travel; quantized, nested, subclass and meta ones are ErrorKind::unsupported.
//
// Tensors on an accelerator travel by the call's device map (device_options.h), copied when the call is made;
// one on a device that the map does not name is failed_precondition.
//
// Arguments are borrowed until they are sent: one that is changed meanwhile fails its call with
// argument_modified; Snapshot(t) copies instead. Results that somebody else still holds (parameters, kept
// values) are copied.
//
// Gradients: in a call with a pass, tensors that require grad are joined to the graph on the other side. In a
// call without one, leaves travel detached and a non-leaf that requires grad is failed_precondition: a silent
// detachment would train wrongly.
#pragma once

#include <weft/rpc/agent/method.h>

#include <ATen/core/Tensor.h>

namespace weft::tensor {

// An argument that is copied when the call is made, so that the caller may change the tensor at once.
class Snapshot {
 public:
  explicit Snapshot(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  const at::Tensor& tensor() const { return tensor_; }  // the copy

 private:
  at::Tensor tensor_;
};

}  // namespace weft::tensor

namespace weft::rpc {

template <>
struct WEFT_EXPORT Codec<at::Tensor> {
  static void describe(TypeText& text) { text << "tensor"; }
  static void encode(ValueWriter writer, const at::Tensor& tensor);
  static at::Tensor decode(ValueReader reader);
};

template <>
struct WEFT_EXPORT Codec<tensor::Snapshot> {
  static void describe(TypeText& text) { text << "tensor"; }
  static void encode(ValueWriter writer, const tensor::Snapshot& snapshot);
};

template <>
struct StandsFor<tensor::Snapshot, at::Tensor> : std::true_type {};

}  // namespace weft::rpc
