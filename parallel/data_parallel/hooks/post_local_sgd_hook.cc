#include <weft/parallel/data_parallel/hooks/post_local_sgd_hook.h>

#include <weft/parallel/data_parallel/hooks/internal/hook_state.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace weft::data_parallel {
namespace {

// The size of the subgroup divided by the number of its ranks that count. excluded: ranks of the group.
double factor_of(const collectives::Group& subgroup, const collectives::Group& group,
                 const std::vector<int>& excluded) {
  if (excluded.empty()) return 1;
  const std::vector<std::string> within = subgroup.members(), all = group.members();
  const auto left_out = std::count_if(excluded.begin(), excluded.end(), [&](int rank) {
    return std::find(within.begin(), within.end(), all[static_cast<std::size_t>(rank)]) != within.end();
  });
  const auto size = static_cast<double>(subgroup.size());
  return size / std::max(size - static_cast<double>(left_out), 1.0);  // 1: all contribute zeros
}

}  // namespace

PostLocalSgdHook::PostLocalSgdHook(std::int64_t start_iteration, std::optional<collectives::Group> subgroup)
    : start_iteration_(start_iteration), subgroup_(std::move(subgroup)) {
  if (start_iteration < 0)
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "PostLocalSgdHook: start_iteration " + std::to_string(start_iteration) + ", expected 0 or more");
}

std::optional<rpc::Future<void>> PostLocalSgdHook::run(const collectives::Group& group,
                                                       GradientBucket& bucket, int step) {
  if (step > 0) return std::nullopt;
  if (iterations_ <= start_iteration_) return all_reduce_average(group, bucket.buffer);
  bucket.factor = subgroup_ ? factor_of(*subgroup_, group, bucket.excluded) : 1;
  if (!subgroup_) return std::nullopt;
  return all_reduce_average(*subgroup_, bucket.buffer);
}

void PostLocalSgdHook::save(torch::serialize::OutputArchive& archive) const {
  save_number(archive, "iterations", iterations_);
}

void PostLocalSgdHook::load(torch::serialize::InputArchive& archive) {
  iterations_ = load_number(archive, "iterations");
}

}  // namespace weft::data_parallel
