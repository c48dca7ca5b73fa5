// The codec of tensors: a tensor is a record {dtype, shape, data}. Data of up to 1 KiB is part of the header.
// Larger data is an attachment, which is read directly into the received tensor's storage.
//
// A view sends its elements, not its storage. An expanded dimension is sent as one element; conj and neg are
// resolved; aliasing between arguments is not preserved. A tensor that is dense but not contiguous
// (transposed, channels_last) arrives with its strides, which costs a copy on each side. All other tensors
// arrive contiguous, except with Leaf(t). Undefined, zero-size, 0-d, non-dense, complex, fp8, COO and CSR
// tensors can be sent. Quantized, nested, subclass and meta tensors fail with ErrorKind::unsupported.
//
// Tensors on an accelerator are sent according to the call's device map (device_options.h), and are copied
// when the call is made. A tensor on a device that the map does not name fails with failed_precondition.
//
// Arguments are borrowed until they are sent. If the program changes an argument before it is sent, the call
// fails with argument_modified. To change a tensor at once, pass Snapshot(t), which copies the tensor.
// Results that are referenced elsewhere (parameters, kept values) are copied.
//
// Gradients: in a call with a pass, tensors that require grad are connected to the graph on the other side.
// In a call without a pass, leaves are sent detached, and a non-leaf that requires grad fails with
// failed_precondition: silently detaching it would train incorrectly. Leaf(t) sends whether t requires grad.
// A handler of a call without a pass runs under no-grad; at::AutoGradMode in the handler switches grad mode
// on.
#pragma once

#include <weft/rpc/call/method.h>

#include <ATen/core/Tensor.h>

namespace weft::tensor {

// An argument that is copied when the call is made, so that the caller may change the tensor at once.
class Snapshot {
 public:
  explicit Snapshot(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  const at::Tensor& tensor() const { return tensor_; }  // the codec copies it

 private:
  at::Tensor tensor_;
};

// An argument or a result that arrives as a leaf which requires grad if the sent tensor does. It also arrives
// with the strides of a view that is not dense, with the memory between its elements, unless these are less
// than half of more than 8 KiB. A parameter of type at::Tensor accepts it. In a call with a pass its
// gradients are those of any other tensor.
class Leaf {
 public:
  explicit Leaf(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  const at::Tensor& tensor() const { return tensor_; }  // on either side

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
struct WEFT_EXPORT Codec<tensor::Leaf> {
  static void describe(TypeText& text) { text << "tensor"; }
  static void encode(ValueWriter writer, const tensor::Leaf& leaf);
  static tensor::Leaf decode(ValueReader reader);
};

template <>
struct StandsFor<tensor::Snapshot, at::Tensor> : std::true_type {};
template <>
struct StandsFor<tensor::Leaf, at::Tensor> : std::true_type {};

}  // namespace weft::rpc
