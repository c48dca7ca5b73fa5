// BufferPool: reusable buffers in a group's memory.
//
// All buffers of one type and device have the largest size that was announced for them, so that they are
// interchangeable. A buffer is allocated when none is free. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::sharded {

class BufferPool {
 public:
  explicit BufferPool(collectives::Group group) : group_(std::move(group)) {}

  // Call it before the first take() of this type and device. Smaller buffers are then not used again.
  void announce(const at::TensorOptions& options, std::int64_t elements);
  // Returns a tensor of one dimension; its values are unspecified.
  at::Tensor take(const at::TensorOptions& options, std::int64_t elements);
  void give_back(const at::Tensor& buffer);

  bool has_free(const at::TensorOptions& options) const;
  std::size_t made(const at::TensorOptions& options) const;  // number of allocated buffers
  std::size_t bytes() const;                                 // of all buffers

 private:
  struct Buffers {
    std::int64_t elements = 0;
    std::size_t made = 0, item_size = 0;
    std::vector<at::Tensor> free;
  };
  using Key = std::pair<at::ScalarType, std::string>;
  static Key key_of(const at::TensorOptions& options) {
    return {c10::typeMetaToScalarType(options.dtype()), options.device().str()};
  }

  collectives::Group group_;
  std::map<Key, Buffers> buffers_;
};

}  // namespace weft::sharded
