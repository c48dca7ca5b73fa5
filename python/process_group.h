// ProcessGroup: the backend `weft` of torch.distributed, a collectives::Group as a c10d::Backend.
//
// The process groups of one process share one agent, that of the default group. Collectives accept tensors in
// host memory. Errors: DistBackendError, for a timeout with the text "Timed out"; RuntimeError for arguments
// that weft refuses. Thread-safety: as collectives::Group, except coalescing and reconfigure().
#pragma once

#include <weft/parallel/collectives/group.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace weft::python {

class Work;
struct World;

class ProcessGroup final : public c10d::Backend {
 public:
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  using OptionsPtr = c10::intrusive_ptr<Options>;
  using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensor = at::Tensor;
  using Tensors = std::vector<Tensor>;
  using Lists = std::vector<Tensors>;
  using Sizes = std::vector<std::int64_t>;
  using enum c10d::OpType;
  using Op = collectives::Operation;

  // The default group, which makes a world with the store's help. Blocks until all members have called it.
  // options.backend: the name under which the backend is registered. options.enable_reconfigure: returns at
  // once a group that has no members until reconfigure().
  static c10::intrusive_ptr<ProcessGroup> create(const StorePtr& store, int rank, int size,
                                                 OptionsPtr options);
  // store: null: without reconfigure().
  ProcessGroup(int rank, int size, OptionsPtr options, StorePtr store = nullptr)
      : Backend(rank, size),
        options_(std::move(options)),
        store_(std::move(store)),
        handle_(std::to_string(rank)) {}
  ~ProcessGroup() override { shutdown(); }

  const std::string getBackendName() const override { return options_->backend; }
  OptionsPtr getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsSplitting() const override { return true; }
  // A group of these ranks, of the world of this group. All of them call it. Null if this rank is not in the
  // list.
  BackendPtr split(const StorePtr& store, const std::vector<int>& ranks, const OptionsPtr& options) override;
  // All remaining ranks must be alive and call it.
  bool supportsShrinking() const override { return true; }
  BackendPtr shrink(const std::vector<std::int64_t>& ranks_to_exclude, int flags,
                    const OptionsPtr& options) override;
  // Needs Options::enable_reconfigure. handles: of the new members by rank, or in a set, whose order is that
  // of the text. Aborts the group of the earlier members. Blocks until all new members have called it, or
  // fails at the timeout, or when another thread calls abort() or shutdown(). Call it without other calls of
  // the group at the same time.
  bool supportsReconfigure() const override { return store_ != nullptr; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  WorkPtr reconfigure(const c10d::ReconfigureOptions& options) override;
  void abort() override;
  // This rank leaves the group. Operations of the other ranks that need it fail.
  void shutdown() override;

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  Tensor allocateTensor(long size, at::TensorOptions options) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override { coalesced_.emplace(); }
  WorkPtr endCoalescing() override;

  // Each operation as one of weft. The tensors of a broadcast and of reductions are input and output.
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return run({BROADCAST, "broadcast"}, Op::broadcast, options, {tensors}, tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return run({ALLREDUCE, "all_reduce"}, Op::all_reduce, options, {tensors}, tensors);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return run({ALLREDUCE_COALESCED, "all_reduce"}, Op::all_reduce, options, {tensors}, tensors);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return run({REDUCE, "reduce"}, Op::reduce, options, {tensors}, tensors);
  }
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return run({ALLGATHER, "all_gather"}, Op::all_gather_v, options, outputs, inputs);
  }
  WorkPtr all_gather_single(Tensor& output, Tensor& input, const c10d::AllgatherOptions& options) override {
    return run({_ALLGATHER_BASE, "_all_gather_base"}, Op::all_gather, options, {{output}}, {input});
  }
  WorkPtr all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) override {
    return run({ALLGATHER_INTO_TENSOR_COALESCED, "all_gather"}, Op::all_gather, options, {outputs}, inputs);
  }
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    return run({GATHER, "gather"}, Op::gather, options, outputs, inputs);
  }
  WorkPtr gather_single(Tensor& output, Tensor& input, const c10d::GatherOptions& options) override {
    const bool has_parts = options.rootRank == getRank() && output.dim() > 0;
    const Tensors parts = has_parts ? output.tensor_split(getSize()) : Tensors();
    return run({GATHER, "gather"}, Op::gather, options, {parts}, {input});
  }
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override {
    return run({SCATTER, "scatter"}, Op::scatter, options, {outputs}, joined(inputs));
  }
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return run({REDUCE_SCATTER, "reduce_scatter"}, Op::reduce_scatter_v, options, {outputs}, joined(inputs));
  }
  WorkPtr reduce_scatter_single(Tensor& output, Tensor& input,
                                const c10d::ReduceScatterOptions& options) override {
    return run({_REDUCE_SCATTER_BASE, "_reduce_scatter_base"}, Op::reduce_scatter, options, {{output}},
               {input});
  }
  WorkPtr reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override {
    return run({REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter"}, Op::reduce_scatter, options, {outputs},
               inputs);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    return run({ALLTOALL, "all_to_all"}, Op::all_to_all_v, options, {outputs}, inputs);
  }
  WorkPtr all_to_all_single(Tensor& output, Tensor& input, Sizes& output_sizes, Sizes& input_sizes,
                            const c10d::AllToAllOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return run({BARRIER, "barrier"}, Op::barrier, options, {}, {});
  }
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;

 private:
  // The world leaves before the group ends, so that the other members know. No group: during reconfigure().
  struct Membership {
    std::optional<collectives::Group> group;
    std::shared_ptr<World> world;
  };
  using MembershipPtr = std::shared_ptr<const Membership>;
  // An operation as PyTorch's profiles name it.
  struct Named {
    c10d::OpType type;
    const char* name;
  };
  // A call of an operation of weft.
  struct Call {
    const collectives::Group& group;
    c10::intrusive_ptr<Work> work;
    collectives::Timeout timeout;
    rpc::Site site;
  };
  using Begin = c10::function_ref<rpc::Future<void>(const Call&)>;

  // A group of the members of the world. members: empty for all of them.
  MembershipPtr make(std::shared_ptr<World> world, std::vector<std::string> members,
                     std::chrono::milliseconds timeout);
  MembershipPtr membership() const;  // throws c10::Error if there is no group
  std::chrono::milliseconds timeout_of(std::chrono::milliseconds stated) const {
    return stated == c10d::kUnsetTimeout ? options_->timeout : stated;
  }
  // waits: the caller waits for the result at once.
  WorkPtr start(const Named& operation, std::chrono::milliseconds timeout, bool waits, const Tensors& inputs,
                Lists outputs, Begin begin);
  template <class CallOptions>
  WorkPtr run(const Named& named, Op operation, const CallOptions& options, Lists outputs,
              const Tensors& inputs) {
    std::optional<int> root;
    std::optional<collectives::ReduceOp> reduction;
    if constexpr (requires { options.rootRank; }) root = static_cast<int>(options.rootRank);
    if constexpr (requires { options.reduceOp; }) reduction = reduction_of(options.reduceOp);
    const bool in_place =
        operation == Op::broadcast || operation == Op::all_reduce || operation == Op::reduce;
    return start(named, options.timeout, !options.asyncOp, inputs, outputs, [&](const Call& call) {
      return call.group.collective(operation, joined(outputs), in_place ? Tensors() : inputs, root, reduction,
                                   call.timeout, call.site);
    });
  }
  static std::optional<collectives::ReduceOp> reduction_of(const c10d::ReduceOp& op);  // nullopt: unknown
  // weft refuses several lists, which have too many tensors.
  static Tensors joined(const Lists& lists);

  std::atomic<MembershipPtr> membership_;  // null: shut down, or before reconfigure()
  const OptionsPtr options_;
  const StorePtr store_;
  const std::string handle_;  // unique among the processes that share the store
  std::atomic<std::uint64_t> sequence_ = 0;
  std::optional<std::vector<rpc::Future<void>>> coalesced_;  // what was started since startCoalescing()
};

}  // namespace weft::python
