#include <weft/dist_optim/service/internal/change_all.h>

#include <weft/rpc/core/when_all.h>

#include <ATen/ops/zeros.h>

#include <exception>
#include <utility>

namespace weft::dist_optim {
namespace {

at::Tensor without_values(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() == 0 || tensor.is_quantized()) return tensor;
  const at::TensorOptions options(tensor.scalar_type());
  if (tensor.layout() == at::kSparse) return at::zeros(tensor.sizes(), options.layout(at::kSparse));
  if (tensor.layout() != at::kStrided) return tensor;
  return at::zeros({}, options).expand(tensor.sizes());
}

std::string place_of(const ObjectChange& change) {
  return change.name + " on " + change.object->owner().name;
}

}  // namespace

rpc::Task<void> change_all(std::string operation, std::vector<ObjectChange> changes) {
  if (changes.size() > 1) {  // one object changes completely or not at all
    std::vector<rpc::Future<void>> checked;
    for (const ObjectChange& change : changes)
      for (const ObjectChange::Ask& check : change.checks) checked.push_back(check());
    auto all = rpc::when_all(std::move(checked));
    co_await std::move(all);
  }
  std::vector<rpc::Future<void>> applied;
  for (const ObjectChange& change : changes) applied.push_back(change.apply());
  std::string changed;
  std::size_t count = 0;
  const ObjectChange* refused = nullptr;
  std::exception_ptr failed;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    try {
      co_await std::move(applied[i]);
      changed += (count++ == 0 ? "" : ", ") + place_of(changes[i]);
    } catch (...) {
      if (failed == nullptr) {
        refused = &changes[i];
        failed = std::current_exception();
      }
    }
  }
  if (failed == nullptr) co_return;
  if (count == 0) std::rethrow_exception(failed);
  try {
    std::rethrow_exception(failed);
  } catch (const rpc::Error& error) {
    throw rpc::Error(error.kind(), operation + ": " + place_of(*refused) + ": " + error.what() +
                                       "; the new state is in " + std::to_string(count) + " of " +
                                       std::to_string(changes.size()) + ": " + changed + "; call it again");
  }
}

dist_autograd::StateDict without_values(dist_autograd::StateDict state) {
  for (dist_autograd::NamedTensor& each : state) each.tensor = without_values(each.tensor);
  return state;
}

OptimizerState without_values(OptimizerState state) {
  for (auto& [name, tensor] : state.tensors) tensor = without_values(tensor);
  return state;
}

}  // namespace weft::dist_optim
