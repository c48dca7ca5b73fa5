// GroupDevices: the collectives of one group on tensors of an accelerator, by NCCL.
//
// A group has one communicator, on one device of each member. If all members call prepare(), prepare()
// creates the communicator. Otherwise the first collective creates it, and blocks the calling thread until
// all members have arrived. run() puts a collective on the current stream at once. In parallel, a comparison
// checks that the ranks' operations are equal. The comparison is a collective of the group without elements.
// It starts first, because a launch may wait for a rank that does not arrive. An operation on a device cannot
// be taken back, so a difference ends the group here, as every other failure of the comparison or of the
// device does. When the group ends, it aborts the communicator, or the creation of the communicator; in an
// orderly end, when the device is idle, it finalizes the communicator. A collective's future completes when
// the comparison and the device have completed. Tensors are contiguous. Thread-safe; the program must order
// the collectives of different threads.
#pragma once

#include <weft/parallel/collectives/internal/group/group_collectives.h>
#include <weft/parallel/collectives/internal/group/group_messages.h>
#include <weft/parallel/collectives/internal/group/group_values.h>
#include <weft/parallel/collectives/nccl/internal/devices.h>
#include <weft/parallel/collectives/operation/internal/collective_call.h>
#include <weft/rpc/core/mutex.h>

#include <atomic>
#include <mutex>

namespace weft::collectives {

class WEFT_EXPORT GroupDevices final : public GroupPart {
 public:
  using Timeout = std::optional<std::chrono::nanoseconds>;  // empty: the group's timeout

  // group: the owner, with the other parts.
  GroupDevices(GroupMember& group, GroupFailure& failure, GroupCollectives& collectives,
               GroupMessages& messages, GroupValues& values)
      : group_(group),
        failure_(failure),
        collectives_(collectives),
        messages_(messages),
        values_(values),
        devices_(group.options().devices) {}
  ~GroupDevices();

  // Completes when the communicator exists and its ranks are connected. If a member cannot create a
  // communicator, fails with unsupported on all members. prepare() may then be called again; collectives do
  // not create the communicator again.
  rpc::Future<void> prepare(c10::Device device, Timeout timeout, const rpc::Site& site);

  // Checks the call, and puts it on the current stream of its tensors' device.
  rpc::Future<void> run(CollectiveCall call);
  // Like run(call), with the caller's own comparison; the caller has checked the call.
  rpc::Future<void> run(const CollectiveCall& call, Collective comparison);
  // Sends and receives the messages in one launch; failed_precondition before prepare(). To compare the two
  // sides of each message, the group also sends a message without data (GroupMessages::send()), in the same
  // order.
  rpc::Future<void> exchange(std::vector<PointToPoint> messages, Timeout timeout, const rpc::Site& site);

  // See GroupPart. busy(): collectives or messages are in flight.
  bool awaits(int, std::uint64_t) override { return false; }
  bool busy() const override { return in_flight_ != 0; }
  // A member has left the group: every member ends its communicator when the communicator is idle.
  void member_left(const rpc::Error& error) override;
  void stop(const rpc::Error& error) override;  // the group has ended; does not block

 private:
  struct OnDevice {
    c10::Device device;
    rpc::Promise<void> promise;              // of the creation; empty once the creation is completed
    rpc::Future<void> creation{};            // NCCL's part in the creation, to be cancelled
    nccl::Communicator::Ptr communicator{};  // null: it is being created
    std::optional<nccl::TensorCollectives>
        ranks{};  // none: it is being created, or its ranks are being connected
  };

  std::optional<nccl::TensorCollectives> found(c10::Device device) const;
  rpc::Future<void> claim(c10::Device device) WEFT_REQUIRES(mutex_);
  void make(c10::Device device, std::chrono::nanoseconds limit, const rpc::Site& site);
  void make_offer(c10::Device device, std::chrono::nanoseconds limit, const rpc::Site& site,
                  std::uint64_t round);
  void create(c10::Device device, const std::vector<rpc::Buffer>& offers, std::chrono::nanoseconds limit);
  void connect(c10::Device device, nccl::Communicator::Ptr communicator, std::chrono::nanoseconds limit);
  void made(rpc::Result<nccl::TensorCollectives>&& ranks);
  void wait_until_made();
  void close(const nccl::Communicator::Ptr& communicator);
  void end_if_left();
  // Calls `put`, which puts an operation on the device, and `compare`, which starts the comparison. compare:
  // null if the comparison is already in flight.
  rpc::Future<void> launch(c10::Device device, const std::function<void()>& compare,
                           const std::function<rpc::Future<void>(const nccl::TensorCollectives&)>& put);
  Collective comparison_of(const CollectiveCall& call) const;
  rpc::Future<void> compared(rpc::Future<void> comparison) const;
  std::exception_ptr reason(std::exception_ptr error) const;
  bool must_not_block() const;
  const std::shared_ptr<rpc::Loop>& loop() const;  // the loop of the futures
  rpc::Future<void> when_both(std::vector<rpc::Future<void>> sides, const std::string& what);
  std::chrono::nanoseconds limit_of(Timeout timeout) const;

  GroupMember& group_;
  GroupFailure& failure_;
  GroupCollectives& collectives_;
  GroupMessages& messages_;
  GroupValues& values_;
  const std::shared_ptr<nccl::Devices> devices_;
  std::atomic<std::size_t> in_flight_{0};
  // Locked while a comparison is started and the turn to launch is reserved, so that comparisons and launches
  // have the same order. A continuation that runs meanwhile may start more collectives on this thread, so the
  // mutex must be recursive; rpc::Mutex is not.
  std::recursive_mutex order_;

  mutable rpc::Mutex mutex_;  // taken after order_, or alone
  rpc::Condition changed_;
  std::optional<OnDevice> on_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr not_made_ WEFT_GUARDED_BY(mutex_);  // why the last creation failed, on all members
  std::optional<rpc::Error> over_ WEFT_GUARDED_BY(mutex_);
  std::optional<rpc::Error> left_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::collectives
