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

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

namespace weft::python {

struct World;

class ProcessGroup final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    // name: under which the backend is registered.
    Options(std::string name, std::chrono::milliseconds timeout)
        : c10d::Backend::Options(std::move(name), timeout) {}
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
      return c10::make_intrusive<Options>(*this);
    }
  };

  // A group of the ranks in options.global_ranks_in_group, of the world of `parent`. parent: null for the
  // default group, which makes a world of its own with the store's help. Blocks until all members have called
  // it. options.enable_reconfigure: returns at once a group that has no members until reconfigure().
  static c10::intrusive_ptr<ProcessGroup> create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                 int size, c10::intrusive_ptr<Options> options,
                                                 const ProcessGroup* parent);
  ProcessGroup(int rank, int size, c10::intrusive_ptr<Options> options);
  ~ProcessGroup() override;

  const std::string getBackendName() const override { return options_->backend; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  // All remaining ranks must be alive and call it.
  bool supportsShrinking() const override { return true; }
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<std::int64_t>& ranks_to_exclude, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  // Needs Options::enable_reconfigure. handles: of the new members by rank, or in a set, whose order is that
  // of the text. Aborts the group of the earlier members. Blocks until all new members have called it, or
  // fails at the timeout. Call it without other calls of the group at the same time.
  bool supportsReconfigure() const override { return store_ != nullptr; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  c10::intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& options) override;
  void abort() override;
  void shutdown() override;

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr all_gather_single(at::Tensor& output, at::Tensor& input,
                            const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(Lists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& options) override;
  WorkPtr gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr gather_single(at::Tensor& output, at::Tensor& input, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_single_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr all_to_all_single(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_sizes,
                            std::vector<std::int64_t>& input_sizes,
                            const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

 private:
  // The world leaves before the group ends, so that the other members know.
  struct Membership {
    collectives::Group group;
    std::shared_ptr<World> world;
  };
  // members: empty for all of the world.
  static std::shared_ptr<const Membership> make(std::shared_ptr<World> world,
                                                std::vector<std::string> members, const Options& options,
                                                std::chrono::milliseconds timeout);
  // A group of the ranks of this group.
  c10::intrusive_ptr<ProcessGroup> among(const std::vector<int>& ranks,
                                         c10::intrusive_ptr<Options> options) const;
  void enter(std::shared_ptr<const Membership> membership);
  std::shared_ptr<const Membership> membership() const;  // throws c10::Error if there is none
  // Starts a collective and returns its work. name: for profiles. begin(group, timeout, site) returns the
  // collective's future.
  template <class CallOptions, class Begin>
  WorkPtr start(c10d::OpType operation, const char* name, const CallOptions& options, const Tensors& inputs,
                Lists outputs, Begin begin);

  // null: shut down, or before reconfigure()
  std::atomic<std::shared_ptr<const Membership>> membership_;
  const c10::intrusive_ptr<Options> options_;
  c10::intrusive_ptr<c10d::Store> store_;  // null: without reconfigure()
  std::string handle_;
  std::atomic<std::uint64_t> sequence_ = 0;
  std::optional<std::vector<rpc::Future<int>>> coalesced_;  // what was started since startCoalescing()
};

void bind_process_group(pybind11::module_& module);

}  // namespace weft::python
