// UnitRunner: gathers the parameters of each unit before the unit computes, and reduces their gradients.
//
// A unit is a block; unit 0 has the parameters that are in no block, and they are whole from the start of
// forward to the end of backward. Before a unit's forward its parameters are gathered from all ranks, and
// those of the next unit begin to be gathered; afterwards they are split again. When backward has computed
// all gradients of a unit that it will compute, they are reduced to the ranks' parts.
//
// A collective needs all ranks, and a rank may not reach all units. So backward has one sequence of units,
// that of the forward, reversed, which the ranks have compared: each is gathered once and reduced once, in
// this order, also on a rank that does not reach it. At the end the ranks exchange which parameters have
// gradients.
//
// Gathers and reductions use two groups: a group runs its collectives in order, and a gather must not wait
// for the reductions before it. Owned by a ShardedModule. Hooks run on threads of LibTorch's engine; one
// backward at a time.
#pragma once

#include <weft/parallel/data_parallel/communication_stream.h>
#include <weft/parallel/data_parallel/gradient_hooks.h>
#include <weft/parallel/sharded/block.h>
#include <weft/parallel/sharded/internal/buffer_pool.h>
#include <weft/parallel/sharded/internal/flat_shard.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

struct UnitParameters {
  std::string name;  // of the block; empty: unit 0
  std::vector<data_parallel::NamedParameter> parameters;
};

class UnitRunner : public BlockObserver, public std::enable_shared_from_this<UnitRunner> {
 public:
  struct Setup {
    collectives::Group gathers, reductions;      // the same ranks
    std::optional<collectives::Group> replicas;  // ranks with the same parts
    ShardTypes types;
    bool splits_after_forward = true;
  };
  // Takes the parameters' values over. The first unit is unit 0.
  static std::shared_ptr<UnitRunner> make(Setup setup, std::vector<UnitParameters> units);
  ~UnitRunner() override;

  // Around each forward of the module.
  void begin_forward();
  void end_forward();
  void leave_forward();  // an exception ends it
  void before_forward(std::size_t unit) override;
  void after_forward(std::size_t unit) override;
  void watch(std::size_t unit, const at::Tensor& output) override;

  // All units are whole in between, on all ranks; between iterations.
  void keep_whole();
  void release_whole();

  std::vector<const FlatShard*> shards() const;  // of all units, in order
  const collectives::Group& group() const { return setup_.gathers; }
  std::size_t bytes() const;  // parts, their gradients, and buffers
  void abort(const std::string& reason) const;

 private:
  struct Buffers;
  struct Unit;
  struct Iteration;
  struct InFlight;
  struct Reduction;
  class Ending;
  struct Place {  // of a parameter
    std::size_t unit, shard, index;
  };

  UnitRunner(Setup setup, std::vector<UnitParameters> units);

  // Under mutex_.
  void start_gather(Unit& unit);
  void finish_gather(Unit& unit);
  void split(Unit& unit);
  void split_all();
  void before_backward(std::size_t unit, const std::shared_ptr<Iteration>& iteration);
  void start_in_engine(const std::shared_ptr<Ending>& ending, const std::shared_ptr<Iteration>& iteration);
  void add_to_sequence(const std::shared_ptr<Iteration>& iteration);
  void expect_equal_orders(Iteration& iteration) const;
  void start_gathers(std::size_t end);  // of the sequence
  void accumulated(std::size_t parameter, bool defined);
  void launch_ready();
  void launch(Unit& unit);
  at::Tensor gradient_buffer(Unit& unit, const FlatShard& shard);
  // A collective that `begin` begins on the stream.
  InFlight in_flight(const data_parallel::CommunicationStream& stream,
                     const std::function<rpc::Future<void>()>& begin) const;
  // It is done: on the CPU now; on a device for later work on its current stream.
  void settle(InFlight collective);
  void expect_settled();
  void retire_first();
  std::vector<bool> exchange_reached();
  void finish();
  void failed();
  void drop_backward();

  const Setup setup_;
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<Place> places_;  // by parameter that requires grad
  std::optional<data_parallel::GradientHooks> hooks_;
  std::optional<data_parallel::CommunicationStream> gather_stream_, reduce_stream_;
  c10::Device device_ = c10::Device(c10::kCPU);

  mutable std::recursive_mutex mutex_;             // guards what follows
  std::vector<std::unique_ptr<Buffers>> buffers_;  // of unit 0, and of the blocks
  std::vector<rpc::Future<void>> unchecked_;       // collectives on a device
  int kept_whole_ = 0;
  bool in_forward_ = false;
  std::shared_ptr<Iteration> iteration_;  // of the forward that runs, or of the latest one
  std::vector<std::size_t> last_order_;   // of the latest forward: predicts the next one
  // Of the backward that runs.
  bool running_ = false, writes_gradients_ = false;
  std::vector<std::shared_ptr<Iteration>> iterations_;  // that it has reached
  std::vector<std::size_t> sequence_;                   // of blocks
  std::size_t next_gather_ = 0, next_reduction_ = 0;    // in sequence_
  std::deque<Reduction> reductions_;                    // in flight
};

}  // namespace weft::sharded
