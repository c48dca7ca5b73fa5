// NegotiatedReduction: all-reduces by name, which each rank may request in any order.
//
//   auto reduction = data_parallel::NegotiatedReduction::make(agent, group);   // on all ranks; blocks
//   auto weight = reduction->all_reduce("weight", weight_gradient);            // the average over the ranks
//   auto bias = reduction->all_reduce("bias", bias_gradient);                  // another rank: bias first
//   weight.get();
//
// Each rank sends rank 0 the names for which it is ready. Rank 0 plans the launches (reduction_planner.h),
// fuses small tensors into one collective, and sends the plan to all ranks. While no rank makes a request, no
// messages are sent. Group::launch() also orders collectives, but one name at a time and without fusion.
//
// Errors: if the ranks' requests of a name differ, the requests of this name fail on all ranks with
// invalid_argument, whose text has the name, the ranks and both descriptions; other names are not affected.
// If a rank refuses its tensors, the requests of the other ranks fail with the text of the refusal.
// failed_precondition: a request of the name is in flight on this rank, or a rank has destroyed its
// NegotiatedReduction. If a rank is lost, abort() is called, a collective fails or the stall limit expires,
// all pending and later requests fail with that error on all ranks. Tensors are unspecified after an error.
//
// The destructor does not block: requests in flight continue. The agent must outlive these requests.
// Thread-safe. Futures complete on threads of the agent, and continuations must not block.
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
  // All ranks use the values of rank 0.
  FusionSettings fusion = {};
  // Searches for better settings while the program runs. The result is logged at level info as a table.
  std::optional<FusionGrid> tuning = {};
  std::chrono::nanoseconds tuning_window = std::chrono::seconds{1};
  // If ranks wait for this time for a request of another rank, a warning is logged that names the missing
  // ranks. 0: never.
  std::chrono::nanoseconds stall_warning = std::chrono::seconds{60};
  // If ranks wait for this time, all requests fail on all ranks with deadline_exceeded. 0: never.
  std::chrono::nanoseconds stall_limit{0};
  // The devices of this rank whose tensors are reduced, in addition to tensors in host memory. All ranks must
  // have equally many: NCCL reduces the tensors on the i-th devices of all ranks together
  // (docs/internals/nccl.md).
  std::vector<c10::Device> devices = {};
};

// Equal on all ranks for one name.
struct ReductionCall {
  collectives::ReduceOp op = collectives::ReduceOp::avg;  // not premul_sum
  // The factor by which each rank's tensor is multiplied before the reduction. Integers are multiplied in
  // float64 and rounded toward zero.
  double prescale = 1;
  double postscale = 1;  // the factor by which the result is multiplied, in the same way
};

class WEFT_EXPORT NegotiatedReduction {
 public:
  // All ranks of the group call it. It creates two groups of the same ranks for its own use (Group::split).
  // If the agent has a tracer, each request has a span "all_reduce NAME" with three parts: NEGOTIATE until
  // the plan arrives, FUSE while tensors are copied together, ALLREDUCE for the collective.
  static std::shared_ptr<NegotiatedReduction> make(rpc::Agent& agent, const collectives::Group& group,
                                                   const NegotiationOptions& options);
  static std::shared_ptr<NegotiatedReduction> make(rpc::Agent& agent, const collectives::Group& group);
  ~NegotiatedReduction();
  NegotiatedReduction(const NegotiatedReduction&) = delete;
  NegotiatedReduction& operator=(const NegotiatedReduction&) = delete;

  // The rank of this agent in the group, and the number of ranks.
  int rank() const;
  int size() const;
  // Creates another group of these ranks, for other collectives. All ranks call it; it blocks.
  collectives::Group split(const std::string& name) const;

  // Reduces the tensor in place. The tensor has the same shape on all ranks, and is in host memory or on one
  // of NegotiationOptions::devices. Do not access it, and do not use the name again, until the future
  // completes. On a device, the reduction starts after the work that is enqueued on the caller's current
  // stream so far. When the future completes, the device has the result.
  //
  // sum and avg also support sparse tensors (COO) in host memory: the rows of all ranks are gathered and
  // added. Ranks may have different rows. Afterwards the tensor is coalesced and has the rows of all ranks.
  rpc::Future<void> all_reduce(const std::string& name, at::Tensor tensor, ReductionCall call = {});
  // Reduces several dense tensors of one dtype and device under one name, in one launch of any size.
  rpc::Future<void> all_reduce(const std::string& name, std::vector<at::Tensor> tensors,
                               ReductionCall call = {});

  // Declares that this rank makes no further requests until all ranks have joined. It is for ranks with
  // different numbers of batches. Until all ranks have joined, this rank contributes zeros to sums and
  // averages of the other ranks, and no rows to sparse tensors; averages still divide by the number of all
  // ranks. If another rank requests an operation other than sum or avg, that request fails with
  // failed_precondition. The future completes when all ranks have joined; its value is the rank that joined
  // last. failed_precondition: this rank has joined already, or a rank has destroyed its NegotiatedReduction.
  rpc::Future<int> join();

  // Fails all requests on all ranks with `aborted`.
  void abort(const std::string& reason);

  // The settings of the last plan that arrived; initially those of the options.
  FusionSettings fusion() const;
  // The number of launches of this rank so far, and the number of names in these launches.
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
