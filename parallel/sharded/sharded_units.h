// ShardedUnits: parameters that are split over the ranks of a group, in units. The owner calls it to gather a
// unit, to split it again, and to reduce its gradients.
//
// A FullyShardedDataParallel does so before and after the blocks of a module, a pipeline where its schedule
// has the actions. From finish_gather() to split() the parameters of a unit have their values; otherwise a
// use of their elements is an error. Gradients are summed in a buffer of their unit until start_reduction();
// then their averages over the ranks go to the `.grad` of the slices that this rank has.
//
// All ranks have equal units, and start gathers and reductions of the same ones in the same order. The two
// have a group each: a group runs its collectives in order, and a gather must not wait for the reductions
// before it. Not thread-safe. If a collective fails, the owner calls abort() and drop().
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/shard_options.h>
#include <weft/parallel/sharded/training_state.h>
#include <weft/parallel/sharded/unit_parameters.h>
#include <weft/parallel/tensor_parallel/split.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {
class CommunicationStream;
}

namespace weft::sharded {

// The groups of the ranks that share the parameters.
struct ShardGroups {
  collectives::Group gathers, reductions;           // the same ranks
  std::optional<collectives::Group> replicas = {};  // ranks with the same parts
};

// What the owner brings.
struct ShardSetup {
  std::string owner;  // for messages
  ShardGroups groups;
  ShardOptions options = {};
  // Parameters that require grad in units of the owner on other ranks than these.
  std::vector<std::string> names_elsewhere = {};
};

// Makes a group with the same ranks, which only the owner uses. Called by all of them.
WEFT_EXPORT collectives::Group own_group_for(const collectives::Group& group, const std::string& purpose,
                                             const collectives::GroupOptions& options);

class WEFT_EXPORT ShardedUnits {
 public:
  // Takes the parameters' values over, which are the same on all ranks. All are on one device.
  ShardedUnits(ShardSetup setup, const std::vector<UnitParameters>& units);
  ~ShardedUnits();
  ShardedUnits(const ShardedUnits&) = delete;
  ShardedUnits& operator=(const ShardedUnits&) = delete;

  const ShardSetup& setup() const { return setup_; }  // as given, with the present groups
  // Between iterations, or after one has failed: splits the parameters anew over the ranks of these groups.
  // Drops gradients. The slices are new ones, and their elements are zero: the owner fills them by add_to().
  void set_groups(ShardGroups groups);
  std::size_t size() const { return units_.size(); }
  // Those that required grad, in the order in which add_gradient() counts.
  const std::vector<data_parallel::NamedParameter>& trained(std::size_t unit) const;
  bool is_frozen_in_part(std::size_t unit) const;  // by the parameters as they are now
  // failed_precondition: a parameter requires grad that did not, or has another type or device.
  void check_unchanged() const;

  // --- Parameters ---
  void start_gather(std::size_t unit);   // no effect unless the unit is split
  void finish_gather(std::size_t unit);  // starts the gather if that has not been done
  // Of a unit that is whole: this rank's part gets the elements that the program has changed.
  void keep_changes(std::size_t unit);
  void split(std::size_t unit);
  bool is_gathering(std::size_t unit) const;

  // --- Gradients ---
  // unsupported: the gradient is sparse.
  void add_gradient(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);
  // Parameters without a gradient on this rank have zeros.
  void start_reduction(std::size_t unit);
  // Instead of a reduction: the next one reduces the sum. On all ranks.
  void keep_gradients(std::size_t unit);
  void finish_reductions(std::optional<std::size_t> unit = {});  // up to the last one of this unit
  // On all ranks, for the same units: whether a rank has a gradient, by trained().
  std::vector<std::vector<bool>> exchange_gradients(const std::vector<std::size_t>& units) const;
  // After the reduction of the unit. has: of exchange_gradients().
  void publish(std::size_t unit, const std::vector<bool>& has);

  // On a device, computations run on after a collective has failed. check_ended() throws the error of a
  // collective that has ended; wait_for_all() waits for all collectives first.
  void check_ended();
  void wait_for_all();
  void abort(const std::string& reason) const;
  void drop();  // what is in flight

  // --- What this rank has ---
  std::vector<ParameterSlice> slices() const;  // of parameters that require grad: leaves for an optimizer
  // The leaves of slices(), for tensor_parallel::clip_grad_norm(): list the units' group with all_differ.
  std::vector<tensor_parallel::Placement> placements() const;
  std::vector<std::string> names() const;  // of parameters that require grad, on all ranks of the owner
  // The parts of all parameters (training_state.h).
  void add_to(SlicedState& state, const std::string& prefix = "model/") const;
  std::size_t bytes() const;  // of parts, their gradients, and buffers

 private:
  struct Buffers;
  struct InFlight;
  struct Reduction;
  struct Unit;
  struct Streams;

  std::vector<tensor_parallel::Split> splits_of(const at::Tensor& parameter) const;
  at::Tensor gradient_buffer(Unit& unit, std::size_t shard);
  template <class Start>
  InFlight in_flight(const data_parallel::CommunicationStream& stream, Start start) const;
  void settle(InFlight collective);
  void finish_first_reduction();

  ShardSetup setup_;
  std::vector<std::unique_ptr<Buffers>> buffers_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<tensor_parallel::Placement> split_;  // parameters that are parts over other groups
  std::unique_ptr<Streams> streams_;
  std::vector<Reduction> reductions_;         // in flight
  std::vector<rpc::Future<void>> unchecked_;  // collectives on a device
};

}  // namespace weft::sharded
