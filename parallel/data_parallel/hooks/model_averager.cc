#include <weft/parallel/data_parallel/hooks/model_averager.h>

#include <weft/parallel/data_parallel/hooks/internal/hook_state.h>
#include <weft/rpc/core/when_all.h>

#include <c10/core/GradMode.h>

#include <string>
#include <utility>

namespace weft::data_parallel {

rpc::Future<void> average_tensors(const collectives::Group& group, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  // The order of this map is the same on all ranks, as long as each rank has one device of a type.
  std::map<std::pair<at::ScalarType, std::string>, std::vector<at::Tensor>> alike;
  for (const at::Tensor& tensor : tensors)
    alike[{tensor.scalar_type(), tensor.device().str()}].push_back(tensor.detach());
  std::vector<rpc::Future<void>> started;
  for (const auto& [type, some] : alike)
    started.push_back(group.all_reduce(some, collectives::ReduceOp::avg));
  return rpc::when_all(std::move(started));
}

void average_parameters(const collectives::Group& group, const std::vector<at::Tensor>& tensors) {
  average_tensors(group, tensors).get();
}

PeriodicModelAverager::PeriodicModelAverager(std::map<std::int64_t, collectives::Group> groups,
                                             std::int64_t warmup_steps)
    : groups_(std::move(groups)), warmup_steps_(warmup_steps) {
  const auto refuse = [](const std::string& what) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "PeriodicModelAverager: " + what);
  };
  if (groups_.empty()) refuse("0 groups, expected 1 or more");
  if (const std::int64_t least = groups_.begin()->first; least < 1)
    refuse("period " + std::to_string(least) + ", expected 1 or more");
  if (warmup_steps < 0) refuse("warmup_steps " + std::to_string(warmup_steps) + ", expected 0 or more");
}

bool PeriodicModelAverager::step(const std::vector<at::Tensor>& parameters) {
  const std::int64_t local = ++steps_ - warmup_steps_;
  if (local < 1) return false;
  for (auto each = groups_.rbegin(); each != groups_.rend(); ++each) {
    if (local % each->first != 0) continue;
    average_parameters(each->second, parameters);
    return true;
  }
  return false;
}

void PeriodicModelAverager::save(torch::serialize::OutputArchive& archive) const {
  save_number(archive, "steps", steps_);
}

void PeriodicModelAverager::load(torch::serialize::InputArchive& archive) {
  steps_ = load_number(archive, "steps");
}

}  // namespace weft::data_parallel
