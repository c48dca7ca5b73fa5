// PostLocalSgdHook: averages gradients over all ranks at first, later only within a subgroup.
//
// Post-local SGD (Lin, Stich, Patel and Jaggi, 2018). The subgroups (the ranks of a host, for example) then
// train apart, and a PeriodicModelAverager makes their parameters equal again every few steps. Two other
// collectives of all ranks stay in each iteration: the exchange of reached parameters, which
// Options::static_graph leaves out, and the broadcast of buffers, which Buffers::local leaves out. Not
// thread-safe.
#pragma once

#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <torch/serialize/archive.h>

#include <cstdint>
#include <optional>

namespace weft::data_parallel {

class WEFT_EXPORT PostLocalSgdHook final : public CommunicationHook {
 public:
  // start_iteration: the number of first iterations, which average over all ranks. subgroup: has this rank as
  // a member, and no other user during backward. nullopt: later gradients are not averaged at all.
  // invalid_argument: start_iteration < 0.
  PostLocalSgdHook(std::int64_t start_iteration, std::optional<collectives::Group> subgroup);

  void begin_iteration() override { ++iterations_; }
  std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                       int step) override;

  // Between iterations: the number of iterations.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  const std::int64_t start_iteration_;
  const std::optional<collectives::Group> subgroup_;
  std::int64_t iterations_ = 0;  // that have begun
};

}  // namespace weft::data_parallel
