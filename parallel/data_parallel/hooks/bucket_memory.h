// BucketMemory: the working memory of a hook for each bucket that it reduces.
//
// Several buckets with one index may be in flight at the same time: each dist_autograd::Pass has its own
// buckets. Therefore the memory belongs to the buffer of a bucket, and not to its index. It is freed after
// the buffer has been freed. Owned by a hook. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <utility>

namespace weft::data_parallel {

template <class T>
class BucketMemory {
 public:
  // The memory for a bucket with this buffer. The first call for a buffer creates a T{}.
  T& of(const at::Tensor& buffer) {
    const c10::TensorImpl* const key = buffer.unsafeGetTensorImpl();
    if (const auto found = entries_.find(key); found != entries_.end()) return found->second.memory;
    std::erase_if(entries_, [](const auto& entry) { return entry.second.buffer.expired(); });
    return entries_.emplace(key, Entry{Weak(buffer.getIntrusivePtr()), T{}}).first->second.memory;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    Weak buffer;  // as long as it exists, no other buffer has this address
    T memory;
  };
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
};

}  // namespace weft::data_parallel
