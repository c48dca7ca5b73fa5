#include <weft/dist_autograd/pass_hooks.h>

#include <weft/rpc/core/error.h>

namespace weft::dist_autograd {

void PassHooks::add_context(const void* owner, std::shared_ptr<rpc::ContextSwitch> context) {
  rpc::MutexLock lock(mutex_);
  contexts_.try_emplace(owner, std::move(context));
}

void PassHooks::on_gradient(const at::Tensor& leaf, OnGradient hook) {
  if (!leaf.defined() || !leaf.is_leaf() || !leaf.requires_grad())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     std::string("on_gradient: expected a leaf that requires grad, not ") +
                         (!leaf.defined()   ? "an undefined tensor"
                          : !leaf.is_leaf() ? "the result of an operation"
                                            : "a leaf that does not require grad"));
  rpc::MutexLock lock(mutex_);
  if (!by_tensor_.emplace(leaf.unsafeGetTensorImpl(), leaves_.size()).second)
    throw rpc::Error(rpc::ErrorKind::already_exists, "on_gradient: the leaf already has a hook in this pass");
  leaves_.push_back({leaf, std::make_shared<OnGradient>(std::move(hook))});
  wants_finalize_ = true;
}

void PassHooks::on_finalize(OnFinalize hook) {
  rpc::MutexLock lock(mutex_);
  finalize_.push_back(std::make_shared<OnFinalize>(std::move(hook)));
  wants_finalize_ = true;
}

std::vector<std::shared_ptr<rpc::ContextSwitch>> PassHooks::contexts() const {
  std::vector<std::shared_ptr<rpc::ContextSwitch>> all;
  rpc::MutexLock lock(mutex_);
  for (const auto& [owner, context] : contexts_) all.push_back(context);
  return all;
}

void PassHooks::begin_backward() {
  rpc::MutexLock lock(mutex_);
  for (Leaf& leaf : leaves_) leaf.reached = false;
}

bool PassHooks::has(const at::Tensor& leaf) const {
  if (!wants_finalize_) return false;
  rpc::MutexLock lock(mutex_);
  return by_tensor_.contains(leaf.unsafeGetTensorImpl());
}

void PassHooks::reached(const at::Tensor& leaf, at::Tensor& gradient) {
  std::shared_ptr<OnGradient> hook;
  {
    rpc::MutexLock lock(mutex_);
    const auto found = by_tensor_.find(leaf.unsafeGetTensorImpl());
    if (found == by_tensor_.end()) return;
    leaves_[found->second].reached = true;
    hook = leaves_[found->second].hook;
  }
  (*hook)(gradient);
  if (!gradient.defined() || gradient.sizes() != leaf.sizes())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "on_gradient: the hook replaced the gradient by a tensor of another shape: " +
                         (gradient.defined() ? c10::str(gradient.sizes()) : "undefined") + ", expected " +
                         c10::str(leaf.sizes()));
}

void PassHooks::finalize() {
  std::vector<std::shared_ptr<OnFinalize>> hooks;
  std::vector<at::Tensor> without;
  {
    rpc::MutexLock lock(mutex_);
    hooks = finalize_;
    for (const Leaf& leaf : leaves_)
      if (!leaf.reached) without.push_back(leaf.leaf);
  }
  for (const auto& hook : hooks) (*hook)(without);
}

void PassHooks::clear() {
  // Declared before the lock: destroyed after the lock is released.
  decltype(contexts_) contexts;
  decltype(leaves_) leaves;
  decltype(finalize_) finalize;
  rpc::MutexLock lock(mutex_);
  contexts.swap(contexts_);
  leaves.swap(leaves_);
  finalize.swap(finalize_);
  by_tensor_.clear();
}

}  // namespace weft::dist_autograd
