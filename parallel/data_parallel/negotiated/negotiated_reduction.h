// NegotiatedReduction: all-reduces by name, which each rank may request in any order.
//
//   auto reduction = data_parallel::NegotiatedReduction::make(agent, group);   // on all ranks; blocks
//   auto weight = reduction->all_reduce("weight", weight_gradient);            // the average over the ranks
//   auto bias = reduction->all_reduce("bias", bias_gradient);                  // another rank: bias first
//   weight.get();
//
// The ranks tell rank 0 for which names they are ready. Rank 0 plans the launches (reduction_planner.h),
// fuses small tensors into one collective, and sends the plan to all ranks. Nothing is sent while no rank
// makes a request. Group::launch() agrees on an order too, one name at a time and without fusion.
//
// Errors: invalid_argument on all ranks if they mean different things by a name; the text has the name, the
// ranks and both meanings. Other names go on. failed_precondition: the name is in flight on this rank, or a
// rank has destroyed its NegotiatedReduction. If a rank is lost, abort() is called, a collective fails or the
// stall limit has passed, all pending and later requests fail with that error on all ranks. Tensors are
// unspecified after an error.
//
// The destructor does not block: requests in flight go on. The agent outlives them. Thread-safe. Futures
// complete on threads of the agent, and continuations must not block.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/negotiated/fusion_tuner.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

// How requests are fused and checked.
struct NegotiationOptions {
  // Rank 0's values hold for all ranks.
  FusionSettings fusion = {};
  // Searches for better settings while the program runs. The result is logged at level info as a table.
  std::optional<FusionGrid> tuning = {};
  std::chrono::nanoseconds tuning_window = std::chrono::seconds{1};
  // A tensor that some ranks wait for so long is logged as a warning that names the missing ranks. 0: never.
  std::chrono::nanoseconds stall_warning = std::chrono::seconds{60};
  // After this time the reduction fails on all ranks with deadline_exceeded. 0: never.
  std::chrono::nanoseconds stall_limit{0};
  // This rank's devices whose tensors it reduces, in addition to those in host memory. Equally many on all
  // ranks: NCCL reduces the tensors at one place of the lists together (docs/internals/nccl.md).
  std::vector<c10::Device> devices = {};
};

// Equal on all ranks for one name.
struct ReductionCall {
  collectives::ReduceOp op = collectives::ReduceOp::avg;  // not premul_sum
  // Each rank's tensor is multiplied by it before the reduction; integers in float64, rounded toward zero.
  double prescale = 1;
  double postscale = 1;  // likewise the result
};

class WEFT_EXPORT NegotiatedReduction {
 public:
  // All ranks of the group call it. Makes two groups of the same ranks for itself (Group::split). A tracer of
  // the agent gets a span "all_reduce NAME" for each request, with its parts: NEGOTIATE until the plan
  // arrives, FUSE while tensors are copied together, ALLREDUCE for the collective.
  static std::shared_ptr<NegotiatedReduction> make(rpc::Agent& agent, const collectives::Group& group,
                                                   const NegotiationOptions& options);
  static std::shared_ptr<NegotiatedReduction> make(rpc::Agent& agent, const collectives::Group& group);
  ~NegotiatedReduction();
  NegotiatedReduction(const NegotiatedReduction&) = delete;
  NegotiatedReduction& operator=(const NegotiatedReduction&) = delete;

  // This rank, and the number of ranks, of the group.
  int rank() const;
  int size() const;
  // Another group of these ranks, for other collectives. All ranks call it; blocks.
  collectives::Group split(const std::string& name) const;

  // Reduces the tensor in place. It is of one shape on all ranks, in host memory or on one of the options'
  // devices, and lent until the future completes. A name may be used again after that. On a device, the
  // reduction starts after what the caller's current stream has been given, and when the future completes,
  // the device has the result.
  //
  // sum and avg also of sparse tensors (COO) in host memory: the rows of all ranks are gathered and added up.
  // Ranks may have different rows. Afterwards the tensor is coalesced and has the rows of all ranks.
  rpc::Future<void> all_reduce(const std::string& name, at::Tensor tensor, ReductionCall call = {});
  // Several dense tensors of one dtype and device under one name: reduced together in one launch, whatever
  // their size.
  rpc::Future<void> all_reduce(const std::string& name, std::vector<at::Tensor> tensors,
                               ReductionCall call = {});

  // This rank has no further requests until all ranks have joined: for ranks with different numbers of
  // batches. Meanwhile it contributes zeros to the sums and averages of the others, and no rows to sparse
  // ones; an average still divides by all ranks. Other operations of the others fail with
  // failed_precondition. Completes when all ranks have joined, with the rank that joined last.
  // failed_precondition: this rank has joined already, or a rank has destroyed its NegotiatedReduction.
  rpc::Future<int> join();

  // Fails all requests on all ranks with `aborted`.
  void abort(const std::string& reason);

  // The settings of the last plan that arrived; initially the options'.
  FusionSettings fusion() const;
  // Launches of this rank so far, and the names reduced in them.
  struct Counts {
    std::size_t launches = 0, names = 0;
  };
  Counts counts() const;

 private:
  class State;
  explicit NegotiatedReduction(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State> state_;
};

}  // namespace weft::data_parallel
