// ShardedUnits: parameters that are split over the ranks of a group, in units. The owner calls it to gather a
// unit, to split it again, and to reduce its gradients.
//
// A FullyShardedDataParallel makes these calls before and after the blocks of a module, and a pipeline makes
// them at the actions of its schedule. From finish_gather() to split() the parameters of a unit have their
// values; otherwise a use of their elements is an error. Gradients are summed in a buffer of their unit until
// start_reduction(), which starts to average them over the ranks. publish() stores the averages in the
// `.grad` of this rank's slices.
//
// All ranks have equal units, and start gathers and reductions of the same units in the same order. Gathers
// and reductions use separate groups: a group runs its collectives in order, and a gather must not wait for
// earlier reductions. Not thread-safe. If a collective fails, the owner calls abort() and drop().
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/shard_options.h>
#include <weft/parallel/sharded/training_state.h>
#include <weft/parallel/sharded/unit_parameters.h>
#include <weft/parallel/tensor_parallel/split.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::training {
class CommunicationStream;
}

namespace weft::sharded {

// The groups of the ranks that share the parameters.
struct ShardGroups {
  collectives::Group gathers, reductions;           // two groups of the same ranks
  std::optional<collectives::Group> replicas = {};  // ranks with the same parts
};

// The owner's properties of its units.
struct ShardSetup {
  std::string owner;  // for messages
  ShardGroups groups;
  ShardOptions options = {};
  // If the owner also has units on ranks outside of `groups`: the names of the parameters there that require
  // grad.
  std::vector<std::string> names_elsewhere = {};
};

// If the module of the setup is deferred (ShardOptions::values): gives memory to those of the tensors that
// have none, and are not split, after it has given all ranks the random state of rank 0. All ranks call it.
WEFT_EXPORT void materialize_whole(const ShardSetup& setup, const std::vector<at::Tensor>& tensors);
// The tensors whose elements have memory, and those without a storage.
WEFT_EXPORT torch::OrderedDict<std::string, at::Tensor> with_memory(
    const torch::OrderedDict<std::string, at::Tensor>& tensors);

// Creates a group of the same ranks that only the owner uses. All ranks of the group call it.
WEFT_EXPORT collectives::Group own_group_for(const collectives::Group& group, const std::string& purpose,
                                             const collectives::GroupOptions& options);

class WEFT_EXPORT ShardedUnits {
 public:
  // Takes the parameters' values, which must be equal on all ranks, or computes them (ShardOptions::values):
  // call materialize_whole() before. All parameters are on one device.
  ShardedUnits(ShardSetup setup, const std::vector<UnitParameters>& units);
  ~ShardedUnits();
  ShardedUnits(const ShardedUnits&) = delete;
  ShardedUnits& operator=(const ShardedUnits&) = delete;

  const ShardSetup& setup() const { return setup_; }  // as given, with the present groups
  // Splits the parameters over the ranks of these groups, and drops gradients. Call it between iterations, or
  // after an iteration has failed. The slices are new tensors with zeros: the owner then sets their values
  // through add_to(). Afterwards, the same parameters require grad as on rank 0.
  void set_groups(ShardGroups groups);
  std::size_t size() const { return units_.size(); }
  // The parameters that can require grad. Their order defines the index `parameter` of add_gradient().
  const std::vector<data_parallel::NamedParameter>& trained(std::size_t unit) const;
  // Whether the unit is reduced: a parameter required grad at construction or at a call of train_thawed().
  bool trains(std::size_t unit) const;
  bool is_frozen_in_part(std::size_t unit) const;  // some parameters do not require grad now
  // Parameters may begin to require grad. All ranks call this function before each forward. If a unit has to
  // begin to be reduced, the ranks compare the parameters. failed_precondition on all ranks: they differ.
  void train_thawed();

  // --- Parameters ---
  // No effect unless the unit is split. If the program has given a parameter other memory (torch::load does),
  // the part first gets its values. failed_precondition: the memory is of another type, device or size. root:
  // the only rank that gets the unit, which remains split on the others; nullopt: all ranks.
  void start_gather(std::size_t unit, std::optional<int> root = {});
  // Starts the gather if it has not started. root: that of start_gather().
  void finish_gather(std::size_t unit, std::optional<int> root = {});
  void take_replaced();  // the values of such memory in all units
  // Copies of this rank's elements of a whole unit, by type, for keep_changes().
  std::vector<at::Tensor> own_elements(std::size_t unit) const;
  // Copies into this rank's part the elements of a whole unit that the program has changed.
  // failed_precondition: as start_gather().
  void keep_changes(std::size_t unit, const std::vector<at::Tensor>& before);
  void split(std::size_t unit);
  void drop_replaced(std::size_t unit);  // the memory that the program has given to parameters
  bool is_gathering(std::size_t unit) const;

  // --- Gradients ---
  // unsupported: the gradient is sparse.
  void add_gradient(std::size_t unit, std::size_t parameter, const at::Tensor& gradient);
  // Starts to reduce the gradients of a unit. Parameters without a gradient on this rank contribute zeros.
  void start_reduction(std::size_t unit);
  // Call it instead of start_reduction(), on all ranks. Later gradients are added to the kept ones, and the
  // next reduction of the unit reduces the sum.
  void keep_gradients(std::size_t unit);
  void finish_reductions(std::optional<std::size_t> unit = {});  // up to the last of this unit; nullopt: all
  // Returns for each unit and each parameter in trained() whether any rank has a gradient. All ranks call it,
  // for the same units.
  std::vector<std::vector<bool>> exchange_gradients(const std::vector<std::size_t>& units) const;
  // Stores the gradients of a unit after its reduction. has: the unit's entry of exchange_gradients().
  void publish(std::size_t unit, const std::vector<bool>& has);

  // On a device, computations continue after a collective has failed. check_ended() throws the error of a
  // collective that has completed; wait_for_all() first waits for all collectives.
  void check_ended();
  void wait_for_all();
  void abort(const std::string& reason) const;
  void drop();  // the collectives in flight and the gradients

  // --- This rank's slices ---
  std::vector<ParameterSlice> slices() const;  // of the parameters in trained(): leaves for an optimizer
  // The leaves of slices(), for tensor_parallel::clip_grad_norm(): list the units' group with all_differ.
  std::vector<tensor_parallel::Placement> placements() const;
  std::vector<std::string> names() const;  // of these parameters, on all ranks of the owner
  // The parts of all parameters (training_state.h). Call take_replaced() before.
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
  InFlight in_flight(const training::CommunicationStream& stream, Start start) const;
  void settle(InFlight collective);
  std::vector<bool> share_trained() const;
  void finish_first_reduction();

  ShardSetup setup_;
  // By UnitParameters::buffers and the type of the whole parameters. Shards with another type differ in size,
  // too: if they shared buffers of gradients, all would have the largest size.
  std::map<std::pair<std::size_t, at::ScalarType>, std::unique_ptr<Buffers>> buffers_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<tensor_parallel::Placement> split_;  // parameters that are parts over other groups
  std::unique_ptr<Streams> streams_;
  std::vector<Reduction> reductions_;         // in flight
  std::vector<rpc::Future<void>> unchecked_;  // collectives on a device
};

}  // namespace weft::sharded
