// PostLocalSgdHook: averages gradients over all ranks at first, later only within a subgroup.
//
// Post-local SGD (Lin, Stich, Patel and Jaggi, 2018). The subgroups (for example the ranks of each host) then
// train separately, and a PeriodicModelAverager averages their parameters every few steps. Each iteration
// still has two other collectives of all ranks: the exchange of reached parameters, which
// Options::static_graph omits, and the broadcast of buffers, which Buffers::local omits. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <torch/serialize/archive.h>

#include <cstdint>
#include <optional>

namespace weft::data_parallel {

class WEFT_EXPORT PostLocalSgdHook final : public CommunicationHook {
 public:
  // start_iteration: the number of first iterations, which average over all ranks. subgroup: the group of the
  // later iterations. This rank must be a member, and no other code may use the group during backward.
  // nullopt: the gradients of later iterations are not averaged. invalid_argument: start_iteration < 0.
  PostLocalSgdHook(std::int64_t start_iteration, std::optional<collectives::Group> subgroup);

  void begin_iteration() override { ++iterations_; }
  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

  // The state is the number of iterations. Call these between iterations.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  const std::int64_t start_iteration_;
  const std::optional<collectives::Group> subgroup_;
  std::int64_t iterations_ = 0;  // started so far
};

}  // namespace weft::data_parallel
