#include <weft/parallel/data_parallel/hooks/post_local_sgd_hook.h>

#include <weft/parallel/data_parallel/hooks/hook_state.h>

#include <string>
#include <utility>

namespace weft::data_parallel {

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
