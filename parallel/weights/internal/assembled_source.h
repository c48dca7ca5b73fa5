// AssembledSource: a Source whose tensors are in pieces, from which it fills parts of them.
//
// A derived class sets the forms, without strides, and fills boxes. Functions are thread-safe if fill() is.
#pragma once

#include <weft/parallel/weights/source.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::weights {

// The elements of a tensor with the indices offsets[i] to before offsets[i] + sizes[i].
struct Box {
  std::vector<std::int64_t> offsets, sizes;
};

class WEFT_EXPORT AssembledSource : public Source {
 public:
  at::Tensor view(const std::string& name) const override;  // a copy
  void read(const std::string& name, const at::Tensor& to, const Slice& slice, bool convert) const override;

 protected:
  // Fills `values`, of the tensor's dtype and the box's sizes, in C order and in host memory. The box has
  // elements and is in the tensor.
  virtual void fill(const std::string& name, const Box& box, const at::Tensor& values) const = 0;
};

}  // namespace weft::weights
