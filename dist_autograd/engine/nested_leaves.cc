#include <weft/dist_autograd/engine/nested_leaves.h>

#include <weft/rpc/core/error.h>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <mutex>
#include <vector>

namespace weft::dist_autograd::detail {

class NestedLeaves::Seen final : public c10::DebugInfoBase {
 public:
  static at::RecordFunctionCallback observer() {
    return at::RecordFunctionCallback(&Seen::started).scopes({at::RecordScope::BACKWARD_FUNCTION});
  }

  at::Tensor alive() const {
    std::lock_guard lock(mutex_);
    for (const auto& leaf : leaves_)
      if (auto impl = leaf.lock()) return at::Tensor(std::move(impl));
    return {};
  }

 private:
  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction&) {
    auto* seen = dynamic_cast<Seen*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PRODUCER_INFO));
    const auto node = torch::autograd::get_current_node();  // null for nodes that weft runs
    if (seen == nullptr || !node) return nullptr;
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(&*node)) {
      std::lock_guard lock(seen->mutex_);
      seen->leaves_.emplace_back(leaf->variable.getIntrusivePtr());
    }
    return nullptr;
  }

  mutable std::mutex mutex_;  // guards leaves_
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> leaves_;
};

NestedLeaves::NestedLeaves()
    : seen_(std::make_shared<Seen>()),
      info_(c10::DebugInfoKind::PRODUCER_INFO, seen_),
      observer_(at::addThreadLocalCallback(Seen::observer())) {}

NestedLeaves::~NestedLeaves() { at::removeCallback(observer_); }

void NestedLeaves::check(const torch::autograd::Node& node) const {
  const at::Tensor leaf = seen_->alive();
  if (!leaf.defined()) return;
  throw rpc::Error(rpc::ErrorKind::failed_precondition,
                   node.name() + " ran backward() of LibTorch, which wrote .grad of a leaf of sizes " +
                       c10::str(leaf.sizes()) +
                       ". Gradients belong in the pass: use torch::autograd::grad() and return them");
}

}  // namespace weft::dist_autograd::detail
