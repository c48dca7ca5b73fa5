#include <weft/dist_autograd/engine/internal/nested_leaves.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace weft::dist_autograd::detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

std::unordered_set<const c10::TensorImpl*> leaves_behind(const variable_list& recorded) {
  std::unordered_set<const c10::TensorImpl*> leaves;
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& tensor : recorded)
    if (tensor.defined() && tensor.grad_fn()) visit(&*tensor.grad_fn());
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(node))
      leaves.insert(leaf->variable.unsafeGetTensorImpl());
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return leaves;
}

}  // namespace

class NestedLeaves::Seen final : public c10::DebugInfoBase {
 public:
  static at::RecordFunctionCallback observer() {
    return at::RecordFunctionCallback(&Seen::started).scopes({at::RecordScope::BACKWARD_FUNCTION});
  }

  std::vector<at::Tensor> alive() const {
    std::vector<at::Tensor> found;
    rpc::MutexLock lock(mutex_);
    for (const auto& leaf : leaves_)
      if (auto impl = leaf.lock()) found.emplace_back(std::move(impl));
    return found;
  }

 private:
  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction&) {
    auto* seen = dynamic_cast<Seen*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PRODUCER_INFO));
    const auto node = torch::autograd::get_current_node();  // null for nodes that weft runs
    if (seen == nullptr || !node) return nullptr;
    if (const auto* leaf = dynamic_cast<const AccumulateGrad*>(&*node)) {
      rpc::MutexLock lock(seen->mutex_);
      seen->leaves_.emplace_back(leaf->variable.getIntrusivePtr());
    }
    return nullptr;
  }

  mutable rpc::Mutex mutex_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> leaves_
      WEFT_GUARDED_BY(mutex_);
};

NestedLeaves::NestedLeaves()
    : seen_(std::make_shared<Seen>()),
      info_(c10::DebugInfoKind::PRODUCER_INFO, seen_),
      observer_(at::addThreadLocalCallback(Seen::observer())) {}

NestedLeaves::~NestedLeaves() { at::removeCallback(observer_); }

void NestedLeaves::check(const Node& node, const variable_list& recorded) const {
  const std::vector<at::Tensor> alive = seen_->alive();
  if (alive.empty()) return;
  const auto kept = leaves_behind(recorded);
  const auto written = std::find_if(alive.begin(), alive.end(), [&](const at::Tensor& leaf) {
    return !kept.contains(leaf.unsafeGetTensorImpl());
  });
  if (written == alive.end()) return;
  throw rpc::Error(rpc::ErrorKind::failed_precondition,
                   node.name() +
                       " or one of its hooks ran backward() of LibTorch, which wrote .grad of a leaf"
                       " of sizes " +
                       c10::str(written->sizes()) +
                       ". Gradients belong in the pass: use torch::autograd::grad() and return them");
}

}  // namespace weft::dist_autograd::detail
