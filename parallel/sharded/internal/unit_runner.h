// UnitRunner: gathers, splits and reduces the units of a FullyShardedDataParallel at the right times.
//
// Each block is a unit. Unit 0 has the parameters outside of all blocks, which are whole from the start of
// forward to the end of backward. Before a unit's forward, its parameters are gathered from all ranks, and
// the gather of the next unit starts; after the forward they are split again. When backward has computed all
// expected gradients of a unit, they are reduced to the ranks' parts.
//
// A collective needs all ranks, but the backward of a rank may not reach all units. So all ranks use one
// sequence of units: the reversed order of the forward. The ranks compare the order after each forward.
// Backward gathers and reduces each unit once in this order, also on a rank that does not reach it. At the
// end the ranks exchange which parameters have gradients.
//
// Owned by a ShardedModule. Hooks run on threads of LibTorch's engine; one backward at a time.
#pragma once

#include <weft/parallel/data_parallel/internal/gradient_hooks.h>
#include <weft/parallel/sharded/block.h>
#include <weft/parallel/sharded/sharded_units.h>
#include <weft/parallel/training/internal/engine_backward.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

class UnitRunner : public BlockObserver, public std::enable_shared_from_this<UnitRunner> {
 public:
  static std::shared_ptr<UnitRunner> make(ShardSetup setup, std::vector<UnitParameters> units,
                                          bool splits_after_forward);

  // Called around each forward of the module.
  void begin_forward();
  void end_forward();
  void leave_forward();  // afterwards; without end_forward(), an exception has ended the forward
  void before_forward(std::size_t unit) override;
  void after_forward(std::size_t unit) override;
  void watch(std::size_t unit, const at::Tensor& output) override;

  // Units that are whole between keep_whole() and release_whole(). All ranks call these functions, between
  // iterations.
  struct KeptWhole {
    std::vector<std::size_t> units = {};
    bool is_here = false;      // this rank has them
    bool on_one_rank = false;  // only one rank has them
    // Copies of this rank's elements of the units, to find changes; empty: changes are lost.
    std::vector<std::vector<at::Tensor>> before = {};
  };
  // units: or the error for which this rank has none, which is thrown. root: the only rank that gets them;
  // nullopt: all ranks. failed_precondition: the ranks have other arguments.
  KeptWhole keep_whole(rpc::Result<std::vector<std::size_t>> units, std::optional<int> root,
                       bool keeps_changes);
  void release_whole(const KeptWhole& kept);

  // failed_precondition: within gather(), forward or backward.
  void set_groups(ShardGroups groups);

  // Sets whether the backwards of later forwards reduce gradients. Returns the previous value.
  bool set_reduces(bool on);

  const ShardedUnits& units() const { return units_; }
  void take_replaced();       // ShardedUnits::take_replaced(), outside of gather()
  std::size_t bytes() const;  // parts, their gradients, and buffers

 private:
  struct Iteration;
  using Backward = training::EngineBackward<UnitRunner>;
  friend Backward;
  struct ParameterIndex {  // of a parameter
    std::size_t unit, index;
  };
  struct InBackward {                        // a unit in the backward that runs
    std::size_t expected = 0, received = 0;  // gradients
    std::optional<std::size_t> place = {};   // in the sequence
    bool launched = false;
  };

  UnitRunner(ShardSetup setup, std::vector<UnitParameters> units, bool splits_after_forward);

  // Under mutex_.
  void hook();
  void split(std::size_t unit);
  void split_all();
  void predict_order();
  void before_backward(std::size_t unit, const std::shared_ptr<Iteration>& iteration);
  void start_in_engine(const std::shared_ptr<Backward>& backward,
                       const std::shared_ptr<Iteration>& iteration);
  void add_to_sequence(const std::shared_ptr<Iteration>& iteration);
  void expect_equal(Iteration& iteration) const;
  void expect_equal_gathers(rpc::Result<std::vector<std::size_t>>& units, std::optional<int> root,
                            bool keeps_changes);
  void start_gathers(std::size_t end);  // of the units in sequence_ before `end`
  void accumulated(std::size_t parameter, bool defined);
  void launch_ready();
  void abort(const std::string& what) const;
  bool may_be_used_after_gradients(std::size_t unit) const;
  void launch(std::size_t unit);
  void finish();
  void backward_ended();
  void failed();

  const std::vector<std::string> names_;  // by unit
  const bool splits_after_forward_;

  mutable std::recursive_mutex mutex_;  // guards the members below; rpc::Mutex is not recursive
  ShardedUnits units_;
  // Of the parameters that required grad at the last forward.
  std::vector<ParameterIndex> parameter_indices_;
  std::optional<data_parallel::GradientHooks> hooks_;
  int gathered_ = 0;          // KeptWhole objects
  bool on_one_rank_ = false;  // one of them is KeptWhole::on_one_rank
  std::vector<int> kept_;     // by unit: those of them that keep it whole
  bool in_forward_ = false;
  bool next_reduces_ = true;              // for the next forward
  std::shared_ptr<Iteration> iteration_;  // of the forward that runs, or of the latest one
  std::vector<std::size_t> last_order_;   // of the latest forward: predicts the next one
  // Of the backward that runs.
  bool running_ = false, writes_gradients_ = false, reduces_ = true;
  std::vector<std::shared_ptr<Iteration>> iterations_;  // the iterations that the backward has reached
  std::vector<InBackward> in_backward_;                 // by unit
  std::vector<std::size_t> sequence_;                   // of blocks
  std::size_t next_gather_ = 0, next_reduction_ = 0;    // in sequence_
};

}  // namespace weft::sharded
