// BufferPool: buffers of a group's memory that are used again and again.
//
// All buffers of one type and device have the size of the largest that was announced for it, so that any two
// of them can replace each other. A buffer is made when none is free. Not thread-safe.
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

  // Before the first take() of this type and device.
  void announce(const at::TensorOptions& options, std::int64_t elements);
  // One dimension; its elements are any.
  at::Tensor take(const at::TensorOptions& options, std::int64_t elements);
  void give_back(const at::Tensor& buffer);

  bool has_free(const at::TensorOptions& options) const;
  std::size_t made(const at::TensorOptions& options) const;  // buffers, free or not
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
