// PassHooks: hooks of higher layers on one worker's part of a pass.
//
// A layer can reduce gradients over replicas by hooks on gradients: the hook of a leaf copies its gradient
// into a bucket, starts the reduction of each full bucket, and passes the reduction's future to
// PassState::complete_after(). The finalize hook starts the remaining reductions, for leaves that the
// backward did not reach. If any worker of the pass has such a hook, each backward ends with a stage that
// runs the finalize hooks on all workers of the pass (Stage::finalize). Owned by the PassState. Thread-safe;
// hooks run one at a time, on the pass's serial executor, and must not block.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/unique_function.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace weft::dist_autograd {

class WEFT_EXPORT PassHooks {
 public:
  // Called in each backward with the pass's gradient of the leaf, when that gradient is complete on this
  // worker. The hook may change the gradient in place, or replace it by a tensor of the leaf's shape.
  using OnGradient = rpc::UniqueFunction<void(at::Tensor& gradient)>;
  // Called in each backward when no gradient can arrive any more on any worker. without_gradient: the leaves
  // of on_gradient() that got no gradient in this backward.
  using OnFinalize = rpc::UniqueFunction<void(const std::vector<at::Tensor>& without_gradient)>;

  // The context is entered before each run of this pass's nodes on this worker and left after it, for example
  // to load the version of an object's parameters that the pass reads. If the owner already has a context,
  // the call has no effect. All passes enter contexts in the order of the owners' addresses, so that no cycle
  // of waits arises.
  void add_context(const void* owner, std::shared_ptr<rpc::ContextSwitch> context);
  // Add hooks before the backward. on_gradient() throws already_exists if the leaf already has a hook, and
  // invalid_argument if the tensor is not a leaf that requires grad. Finalize hooks run in the order in which
  // they were added.
  void on_gradient(const at::Tensor& leaf, OnGradient hook);
  void on_finalize(OnFinalize hook);

  // Whether some worker of the pass has a hook, as far as this worker knows. Calls of the pass and their
  // replies carry this value.
  bool wants_finalize() const { return wants_finalize_; }
  void note_wants_finalize() { wants_finalize_ = true; }

  // --- For the PassState ---
  std::vector<std::shared_ptr<rpc::ContextSwitch>> contexts() const;
  void begin_backward();                   // marks all leaves as not reached
  bool has(const at::Tensor& leaf) const;  // on_gradient() was called for the leaf
  // The gradient of the leaf is complete: runs the leaf's hook.
  void reached(const at::Tensor& leaf, at::Tensor& gradient);
  void finalize();  // runs the finalize hooks
  void clear();     // the pass has ended

 private:
  struct Leaf {
    at::Tensor leaf;
    std::shared_ptr<OnGradient> hook;  // shared with a running call of the hook
    bool reached = false;              // true: its gradient is complete in the present backward
  };

  std::atomic<bool> wants_finalize_{false};
  mutable rpc::Mutex mutex_;
  std::map<const void*, std::shared_ptr<rpc::ContextSwitch>> contexts_ WEFT_GUARDED_BY(mutex_);
  std::vector<Leaf> leaves_ WEFT_GUARDED_BY(mutex_);
  std::unordered_map<const c10::TensorImpl*, std::size_t> by_tensor_ WEFT_GUARDED_BY(mutex_);  // in leaves_
  std::vector<std::shared_ptr<OnFinalize>> finalize_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::dist_autograd
