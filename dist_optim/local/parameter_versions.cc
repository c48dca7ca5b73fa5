#include <weft/dist_optim/local/parameter_versions.h>

#include <utility>

#include <ATen/core/grad_mode.h>

namespace weft::dist_optim {
namespace {

std::vector<at::Tensor> tensors_of(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> tensors;
  for (const Parameter& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

// Nothing else can reach the storage: no module tensor, no view saved by a graph that outlived its pass.
bool only_ours(const at::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1;
}

}  // namespace

ParameterVersions::ParameterVersions(const std::vector<Parameter>& parameters)
    : module_(tensors_of(parameters)) {
  Tensors first;
  for (const at::Tensor& tensor : module_) first.push_back(tensor.variable_data());
  versions_[0] = std::make_shared<const Tensors>(std::move(first));
}

void ParameterVersions::load(Version version) {
  std::shared_ptr<const Tensors> tensors;
  {
    rpc::MutexLock lock(mutex_);
    auto found = versions_.find(version);
    tensors = found != versions_.end() ? found->second : versions_.rbegin()->second;
  }
  for (std::size_t i = 0; i < module_.size(); ++i) {
    // Not if it is already set: in the mode `hogwild`, where it always is, others may be reading the tensor.
    if (!module_[i].is_alias_of((*tensors)[i])) module_[i].set_data((*tensors)[i]);
  }
}

std::shared_ptr<const ParameterVersions::Tensors> ParameterVersions::newest() const {
  rpc::MutexLock lock(mutex_);
  return versions_.rbegin()->second;
}

void ParameterVersions::advance_in_place(Version next) {
  rpc::MutexLock lock(mutex_);
  auto newest = versions_.extract(std::prev(versions_.end()));
  newest.key() = next;
  versions_.insert(std::move(newest));
}

ParameterVersions::Tensors ParameterVersions::copy_newest() {
  std::shared_ptr<const Tensors> newest, spare;
  {
    rpc::MutexLock lock(mutex_);
    newest = versions_.rbegin()->second;
    spare = std::exchange(spare_, nullptr);
  }
  // Outside the lock: only steps change or replace the newest version, and they run one at a time.
  at::NoGradGuard no_grad;
  Tensors copy;
  for (std::size_t i = 0; i < newest->size(); ++i) {
    const at::Tensor& from = (*newest)[i];
    if (spare && spare.use_count() == 1 && only_ours((*spare)[i])) {
      (*spare)[i].copy_(from);
      copy.push_back((*spare)[i]);
    } else {
      copy.push_back(from.clone());
    }
  }
  return copy;
}

void ParameterVersions::advance_to(Version next, Tensors copy) {
  rpc::MutexLock lock(mutex_);
  for (const at::Tensor& tensor : copy) copied_bytes_ += tensor.nbytes();
  versions_[next] = std::make_shared<const Tensors>(std::move(copy));
}

void ParameterVersions::drop(Version version) {
  rpc::MutexLock lock(mutex_);
  auto found = versions_.find(version);
  if (found == versions_.end() || std::next(found) == versions_.end()) return;
  spare_ = std::move(found->second);
  versions_.erase(found);
}

std::size_t ParameterVersions::live() const {
  rpc::MutexLock lock(mutex_);
  return versions_.size();
}

std::uint64_t ParameterVersions::copied_bytes() const {
  rpc::MutexLock lock(mutex_);
  return copied_bytes_;
}

}  // namespace weft::dist_optim
