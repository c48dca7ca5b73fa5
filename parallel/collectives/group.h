// Group: a process group, whose ranks are members of a job. Its collectives move tensors between them.
//
//   auto group = co_await collectives::Group::create(agent);      // all of the job, by rank
//   co_await group.all_reduce(gradient, ReduceOp::avg);
//
// Every rank calls the same collectives of a group in the same order; several may be in flight. The ranks'
// shapes, dtypes, roots and operations are compared. If they differ, the collective fails on each rank with
// invalid_argument, which lists the operation and source location of each rank, and the group remains usable.
// If one rank refuses its arguments, its call fails at once, and on the other ranks the collective fails in
// the same way, with the text of the refusal. A refused call is a collective like any other: the next
// collective of that rank is the next one of the other ranks.
// Any other error ends the group on all its ranks, and all further collectives fail with the same error:
// deadline_exceeded, which names the ranks that have not started the collective (GroupOptions::timeout and
// late_after); peer_lost or shut_down,
// which names the member that died or left while it was needed; aborted, which names the member that
// cancelled a future or called abort(). Outputs are unspecified after an error.
//
// Tensors may have any dtype (reduction.h lists the dtypes that reductions accept), be contiguous or not, and
// be empty; inputs may be expanded. GroupOptions::checks can permit other shapes and overlapping tensors. A
// collective borrows its tensors until its future completes: until then, do not write to an input or access
// an output. Tensors of a GPU use NCCL, on the current stream, and must be contiguous
// (docs/internals/nccl.md). Autograd does not record these collectives; functional.h has collectives that
// autograd records. A call increases the version counters of its outputs, on all ranks, so that a backward
// that needs the old values reports an error. Results have the same bits on every rank and in every run.
// Collectives run, and their futures complete, on threads of the agent and of the group, except for
// inlined(). cancel() of a future aborts the group. A Group is a handle: copies refer to the same group.
// Thread-safe, but if several threads call collectives, the program must ensure the same order on all ranks.
#pragma once

#include <weft/parallel/collectives/operation/group_options.h>
#include <weft/parallel/collectives/operation/point_to_point.h>
#include <weft/parallel/collectives/operation/reduce_op.h>
#include <weft/parallel/collectives/plan/operation.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/core/site.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weft::collectives {

class CollectivesLayer;
struct CollectiveCall;
class GroupCore;
struct Rendezvous;
// The timeout of an operation, from its call. nullopt: GroupOptions::timeout.
using Timeout = std::optional<std::chrono::nanoseconds>;

namespace detail {
template <class T>
rpc::Result<std::vector<T>> unpack_all(rpc::Result<std::vector<rpc::Buffer>>&& all) {
  return rpc::capture([&] {
    std::vector<T> values;
    for (const rpc::Buffer& bytes : std::move(all).get()) values.push_back(rpc::unpack<T>(bytes));
    return values;
  });
}
}  // namespace detail

class WEFT_EXPORT Group {
 public:
  // The source location of a call. Leave the parameter at its default: errors and the flight recorder show
  // the location.
  using Site = rpc::Site;

  // Creates a group. Call it on all members. The agent must have collectives::layer(), must have joined its
  // job, and must outlive the future. Errors: those of Job::all_gather; invalid_argument if this agent is not
  // a member, or if a member occurs twice. A group cannot grow: create a new group of its members and the
  // agents that have joined.
  static rpc::Future<Group> create(rpc::Agent& agent, GroupOptions options);
  // The same with the default options. It is an overload because g++ 12 destroys a default argument twice in
  // a co_await expression.
  static rpc::Future<Group> create(rpc::Agent& agent) { return create(agent, GroupOptions{}); }

  // Divides the group: the members with the same color form a new group, ordered by their keys, then by their
  // ranks in this group. A member without a color gets no group. Call it on all members, in the same order
  // relative to all other operations. options: by default those of this group, with the color appended to its
  // name.
  rpc::Future<std::optional<Group>> split(std::optional<int> color, int key = 0,
                                          std::optional<GroupOptions> options = {},
                                          Site site = Site::current()) const;
  // Creates a group of the members that are still alive, in the order of this group and with its options.
  // Call it on all of these members, after the loss of a member has ended this group, in a world that is not
  // fixed.
  rpc::Future<Group> shrink(rpc::Agent& agent) const;

  // The name, the options with which the group was created, this member's rank, and the number of members.
  // They are constant, also after the group has ended. For a group from split(), options().members is not the
  // list of its members: use members().
  const std::string& name() const;
  const GroupOptions& options() const;
  int rank() const;
  int size() const;

  std::vector<std::string> members() const;  // names, by rank

  // A handle to the same group whose collectives start on the calling thread, for a caller that waits for the
  // result at once. In shared memory, the calling thread executes collectives of up to 1 MiB, as long as each
  // other rank arrives within 50 µs. With messages, the calling thread does all work that needs no waiting,
  // after the work that other threads have started.
  Group inlined() const;

  // Allocates a tensor in the members' shared memory, where collectives need not copy it. If the members
  // share no memory, or if the shared memory is used up, the tensor is in ordinary memory. Throws
  // resource_exhausted if the host has no memory left. The tensor may outlive the group. Do not use it after
  // a collective with this tensor as an output has failed.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options = {}) const;
  // How the members access each other's tensors. create() determines it; constant.
  GroupBackend backend() const;

  // Creates the resources for collectives on that device of this member. Call it on all members. A group uses
  // one device. Completes when all members have the resources; if one member cannot create them, prepare()
  // fails with unsupported on all members. Without a call of prepare(), the first collective creates the
  // resources, and blocks the calling thread meanwhile. Messages between devices require prepare().
  rpc::Future<void> prepare(c10::Device device, Timeout timeout = {}, Site site = Site::current()) const;

  // tensor: input and output, of one shape on all ranks. It becomes the reduction of the tensors of all
  // ranks. A sparse tensor (COO, of numbers, in host memory, with `sum`; otherwise unsupported) becomes the
  // coalesced sum; the ranks' numbers of rows may differ. The rows are sent as messages, and the timeout
  // applies to the exchange of their numbers, and again to the messages.
  rpc::Future<void> all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                               Site site = Site::current()) const;
  // Reduces several tensors of one dtype in one collective. The same applies to the other functions with
  // lists of tensors below. Tensors are not copied if they are contiguous and adjacent in one storage, in the
  // given order.
  rpc::Future<void> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op = ReduceOp::sum,
                               Timeout timeout = {}, Site site = Site::current()) const;
  // As all_reduce, but only the root's tensor changes.
  rpc::Future<void> reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                           Site site = Site::current()) const;
  // tensor: of one shape on all ranks. Copies the root's tensor to the tensors of all ranks.
  rpc::Future<void> broadcast(at::Tensor tensor, int root, Timeout timeout = {},
                              Site site = Site::current()) const;
  rpc::Future<void> broadcast(std::vector<at::Tensor> tensors, int root, Timeout timeout = {},
                              Site site = Site::current()) const;
  // output: size() times as many elements as input; it receives the inputs of all ranks, rank after rank. In
  // place: if input is exactly part rank() of the output's memory, it is not copied. The same applies to the
  // functions below, with this rank's part of the output. Any other overlap of inputs and outputs is
  // invalid_argument.
  rpc::Future<void> all_gather(at::Tensor output, at::Tensor input, Timeout timeout = {},
                               Site site = Site::current()) const;
  // outputs[i] gathers inputs[i].
  rpc::Future<void> all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                               Timeout timeout = {}, Site site = Site::current()) const;
  // outputs: one for each rank. Their sizes may differ, but all ranks give the same sizes. input: as large as
  // outputs[rank()].
  rpc::Future<void> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Timeout timeout = {},
                                 Site site = Site::current()) const;
  // input: size() times as many elements as output. The output becomes part rank() of the reduction of all
  // inputs. In place: output may be exactly part rank() of the input's memory; the same applies below. Any
  // other overlap is invalid_argument.
  rpc::Future<void> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                   Timeout timeout = {}, Site site = Site::current()) const;
  // outputs[i] becomes part rank() of the reduction of inputs[i] of all ranks.
  rpc::Future<void> reduce_scatter(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                   ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                                   Site site = Site::current()) const;
  // inputs: one for each rank. Their sizes may differ, but all ranks give the same sizes. output: as large as
  // inputs[rank()]; it becomes the reduction of inputs[rank()] of all ranks.
  rpc::Future<void> reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs,
                                     ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                                     Site site = Site::current()) const;
  // output, input: of one size on all ranks, divided into size() equal parts. Part i of the input becomes
  // part rank() of rank i's output.
  rpc::Future<void> all_to_all(at::Tensor output, at::Tensor input, Timeout timeout = {},
                               Site site = Site::current()) const;
  // outputs, inputs: one tensor for each rank, of any sizes. Rank i's outputs[rank()] must be as large as
  // this rank's inputs[i]. If two ranks differ in a size, the group fails with invalid_argument, which names
  // both. On ranks whose sizes agree with those of all other ranks, the operation may have completed.
  rpc::Future<void> all_to_all_v(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                 Timeout timeout = {}, Site site = Site::current()) const;
  // The same with the parts of one tensor along its first dimension. sizes: one for each rank; empty: equal
  // parts.
  rpc::Future<void> all_to_all_v(at::Tensor output, const std::vector<std::int64_t>& output_sizes,
                                 at::Tensor input, const std::vector<std::int64_t>& input_sizes,
                                 Timeout timeout = {}, Site site = Site::current()) const;
  // outputs, inputs: one for each rank, all of one shape, at the root; empty elsewhere. gather() copies the
  // input of rank i to the root's outputs[i], scatter() the root's inputs[i] to the output of rank i.
  rpc::Future<void> gather(std::vector<at::Tensor> outputs, at::Tensor input, int root, Timeout timeout = {},
                           Site site = Site::current()) const;
  rpc::Future<void> scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root, Timeout timeout = {},
                            Site site = Site::current()) const;
  // Completes when all ranks have called it. If the timeout expires, the error names the ranks that have not.
  rpc::Future<void> barrier(Timeout timeout = {}, Site site = Site::current()) const;

  // The collective whose operation and arguments are data, for bindings of other languages. outputs: also the
  // tensors that are input and output. root, op: as the operation has them. A list with another number of
  // tensors is refused, as all other arguments.
  rpc::Future<void> collective(Operation operation, std::vector<at::Tensor> outputs,
                               std::vector<at::Tensor> inputs, std::optional<int> root,
                               std::optional<ReduceOp> op, Timeout timeout = {},
                               Site site = Site::current()) const;

  // A barrier that reports missing ranks and does not end the group. It returns the ranks that have not
  // called it when the timeout of rank 0 expires, in ascending order, to all ranks that have called it; an
  // empty list if all ranks have called it. The other ranks wait for rank 0 for `timeout`, and at least for
  // GroupOptions::timeout; if rank 0 has not called it by then, the list contains rank 0. It is no
  // collective: it may be called in any order relative to collectives. A rank that calls it after rank 0 has
  // reported it as missing takes part in rank 0's next call. If a member is lost, the group ends.
  // invalid_argument if this rank's previous call has not completed.
  rpc::Future<std::vector<int>> monitored_barrier(Timeout timeout = {}, Site site = Site::current()) const;

  // For collectives that become ready in different orders on different ranks. All ranks call launch() with
  // the same names, in any order and on any threads. `begin` starts collectives of this group. This function
  // runs when all ranks have called launch() with that name, and all ranks run the functions in the same
  // order. The functions run one at a time on a thread of the agent, with the caller's LibTorch thread state.
  // They must not block, and on a device they must set the stream. A name may be used again once its function
  // has run. While a launch is in flight, do not call other collectives of the group: their order would
  // differ between ranks. The future of launch() completes with the future that `begin` returns. timeout: for
  // all ranks to call launch(); the error names the ranks that have not.
  using LaunchFunction = rpc::UniqueFunction<rpc::Future<void>()>;
  rpc::Future<void> launch(const std::string& name, LaunchFunction begin, Timeout timeout = {},
                           Site site = Site::current()) const;

  // send() and recv() move a tensor between two ranks, independently of collectives. If the tensors of the
  // two ranks differ in dtype or shape, both calls fail with invalid_argument. tag: less than 2^63. Messages
  // with the same sender and tag are received in the order in which they were sent. Both futures complete
  // when the receiver has the tensor. A message that is not received yet is a call in flight: rpc::Limits of
  // the receiver bound them, and further messages wait at the sender.
  rpc::Future<void> send(at::Tensor tensor, int to, std::uint64_t tag = 0, Timeout timeout = {},
                         Site site = Site::current()) const;
  rpc::Future<void> recv(at::Tensor tensor, int from, std::uint64_t tag = 0, Timeout timeout = {},
                         Site site = Site::current()) const;
  // Receives a tensor of any dtype and shape in host memory, in the same order as recv() with that sender and
  // tag. rpc::Limits bounds its size, as for every message. recv_tensor() cannot receive a tensor that is
  // sent from a device: use recv() with a tensor on the device.
  rpc::Future<at::Tensor> recv_tensor(int from, std::uint64_t tag = 0, Timeout timeout = {},
                                      Site site = Site::current()) const;
  // Receives the first message with that tag; returns its sender's rank. unsupported on a device.
  rpc::Future<int> recv_any(at::Tensor tensor, std::uint64_t tag = 0, Timeout timeout = {},
                            Site site = Site::current()) const;

  // Starts all messages together; their order has no effect. Completes when all have completed. If several
  // fail, the future has the error of the first in the given order. All tensors are on one device or all in
  // host memory.
  rpc::Future<void> batch(std::vector<PointToPoint> messages, Timeout timeout = {},
                          Site site = Site::current()) const;

  // Exchange small values of the program's own types through rank 0. The type must be the same on all ranks;
  // the ranks' types and operations are compared as for tensors.
  template <rpc::Transferable T>
  rpc::Future<std::vector<T>> all_gather_object(const T& value, Timeout timeout = {},
                                                Site site = Site::current()) const;
  template <rpc::Transferable T>  // at the root: by rank; elsewhere: empty
  rpc::Future<std::vector<T>> gather_object(const T& value, int root, Timeout timeout = {},
                                            Site site = Site::current()) const;
  template <rpc::Transferable T>  // the root's value
  rpc::Future<T> broadcast_object(const T& value, int root, Timeout timeout = {},
                                  Site site = Site::current()) const;
  template <rpc::Transferable T>  // this rank's value; values: one for each rank, at the root
  rpc::Future<T> scatter_object(const std::vector<T>& values, int root, Timeout timeout = {},
                                Site site = Site::current()) const;

  // values: one for each rank. Returns the values for this rank, by the sender's rank.
  template <rpc::Transferable T>
  rpc::Future<std::vector<T>> all_to_all_object(const std::vector<T>& values, Timeout timeout = {},
                                                Site site = Site::current()) const;
  // Combines all values with f(T, T), in the order of ranks: (((0, 1), 2), …). f must be the same on all
  // ranks.
  template <rpc::Transferable T, class F>
  rpc::Future<T> all_reduce_object(const T& value, F f, Timeout timeout = {},
                                   Site site = Site::current()) const;
  // Move a value of any size between two ranks, as send() and recv() do. Both ranks must use the same type.
  template <rpc::Transferable T>
  rpc::Future<void> send_object(const T& value, int to, std::uint64_t tag = 0, Timeout timeout = {},
                                Site site = Site::current()) const;
  template <rpc::Transferable T>
  rpc::Future<T> recv_object(int from, std::uint64_t tag = 0, Timeout timeout = {},
                             Site site = Site::current()) const;

  // Writes this member's flight recorder into `folder` now, as a failure of the group does
  // (GroupOptions::flight_recorder_dir). Returns the file's path. failed_precondition: the file cannot be
  // written.
  std::filesystem::path write_flight(const std::filesystem::path& folder) const;

  // Ends the group, and the groups that were split from it, on all their ranks. If the group has already
  // ended, only the split groups with this rank as a member end.
  void abort(const std::string& reason) const;

  // This member takes no further part in the group, while its agent remains in the job. Operations of other
  // members that need this member fail with shut_down. Operations of this member that are in flight fail on
  // all members.
  void leave() const;

  // For higher layers:
  const std::shared_ptr<rpc::AgentCore>& agent() const;
  // Waits for a collective where the code cannot suspend: also on a handler thread of the agent, on which the
  // nodes of a pass's backward run. Meanwhile another thread takes its place (HandlerPool::Blocking).
  void wait(rpc::Future<void> collective) const;
  // Takes the place of a collective whose arguments this rank refuses. The collective fails on all other
  // ranks, with invalid_argument and the text of `why`. device: of the collective's tensors.
  void decline(Operation operation, c10::Device device, const rpc::Error& why,
               Site site = Site::current()) const;

 private:
  friend class DeviceMesh;
  explicit Group(std::shared_ptr<GroupCore> core) : core_(std::move(core)) {}
  static std::optional<Group> make(const std::shared_ptr<CollectivesLayer>& layer, Rendezvous rendezvous,
                                   const GroupOptions& options);
  static void try_to_shrink(rpc::Agent& agent, const Group& old,
                            const std::shared_ptr<rpc::Promise<Group>>& promise);
  // Uses two rounds of values: the round with the given number and the next one.
  rpc::Future<std::optional<Group>> split_in(std::uint64_t rounds, std::optional<int> color, int key,
                                             const GroupOptions& options, const Site& site) const;
  rpc::Future<void> run(CollectiveCall call) const;
  // Fails a call, in whose place the other ranks see a refused one. first: as CollectiveCall::first().
  rpc::Future<void> refused(Operation operation, const at::Tensor* first, const Site& site,
                            const std::exception_ptr& why) const;
  // Runs a call with tensors of several dtypes as one collective for each dtype.
  rpc::Future<void> run_by_dtype(const CollectiveCall& call) const;
  rpc::Future<void> reduce_sparse(at::Tensor tensor, ReduceOp op, Timeout timeout, const Site& site) const;
  // The objects of all ranks, packed, by rank; empty if the call does not request them. refusal: fails the
  // call, in whose place the other ranks see a refused one.
  using Objects = std::vector<rpc::Buffer>;
  rpc::Future<Objects> give(const std::string& meaning, std::optional<int> root, rpc::Buffer object,
                            bool wants_all, Timeout timeout, const Site& site) const;
  rpc::Future<Objects> give_or_refuse(std::uint64_t round, const std::string& call,
                                      const rpc::Result<void>& refusal, rpc::Buffer object, bool wants_all,
                                      Timeout timeout, const Site& site) const;
  static void expect_one_a_rank(std::size_t objects, int ranks);
  rpc::Future<void> send_packed(const std::string& type, rpc::Buffer object, int to, std::uint64_t tag,
                                Timeout timeout, const Site& site) const;
  rpc::Future<rpc::Buffer> receive_packed(const std::string& type, int from, std::uint64_t tag,
                                          Timeout timeout, const Site& site) const;
  template <class T>
  static std::string meaning_of(const char* operation) {
    std::string meaning = operation;
    meaning += '(';
    meaning += rpc::type_text<T>();
    return meaning;
  }
  rpc::Future<int> receive(at::Tensor tensor, std::optional<int> from, std::uint64_t tag, Timeout timeout,
                           const Site& site) const;
  std::shared_ptr<GroupCore> core_;
  bool inlined_ = false;
};

template <rpc::Transferable T>
rpc::Future<std::vector<T>> Group::all_gather_object(const T& value, Timeout timeout, Site site) const {
  return give(meaning_of<T>("all_gather_object"), std::nullopt, rpc::pack(value), true, timeout, site)
      .then(detail::unpack_all<T>);
}

template <rpc::Transferable T>
rpc::Future<std::vector<T>> Group::gather_object(const T& value, int root, Timeout timeout, Site site) const {
  return give(meaning_of<T>("gather_object"), root, rpc::pack(value), rank() == root, timeout, site)
      .then(detail::unpack_all<T>);
}

template <rpc::Transferable T>
rpc::Future<T> Group::broadcast_object(const T& value, int root, Timeout timeout, Site site) const {
  return give(meaning_of<T>("broadcast_object"), root, rank() == root ? rpc::pack(value) : rpc::Buffer{},
              true, timeout, site)
      .then([root](rpc::Result<Objects>&& all) {
        return rpc::capture(
            [&] { return rpc::unpack<T>(std::move(all).get().at(static_cast<std::size_t>(root))); });
      });
}

template <rpc::Transferable T>
rpc::Future<T> Group::scatter_object(const std::vector<T>& values, int root, Timeout timeout,
                                     Site site) const {
  return give(meaning_of<T>("scatter_object"), root, rank() == root ? rpc::pack(values) : rpc::Buffer{}, true,
              timeout, site)
      .then([root, rank = rank(), size = size()](rpc::Result<Objects>&& all) {
        return rpc::capture([&] {
          auto values = rpc::unpack<std::vector<T>>(std::move(all).get().at(static_cast<std::size_t>(root)));
          expect_one_a_rank(values.size(), size);
          return std::move(values[static_cast<std::size_t>(rank)]);
        });
      });
}

template <rpc::Transferable T>
rpc::Future<std::vector<T>> Group::all_to_all_object(const std::vector<T>& values, Timeout timeout,
                                                     Site site) const {
  return give(meaning_of<T>("all_to_all_object"), std::nullopt, rpc::pack(values), true, timeout, site)
      .then([rank = rank(), size = size()](rpc::Result<Objects>&& all) {
        return rpc::capture([&] {
          std::vector<T> own;
          for (const rpc::Buffer& bytes : std::move(all).get()) {
            auto theirs = rpc::unpack<std::vector<T>>(bytes);
            expect_one_a_rank(theirs.size(), size);
            own.push_back(std::move(theirs[static_cast<std::size_t>(rank)]));
          }
          return own;
        });
      });
}

template <rpc::Transferable T, class F>
rpc::Future<T> Group::all_reduce_object(const T& value, F f, Timeout timeout, Site site) const {
  return give(meaning_of<T>("all_reduce_object"), std::nullopt, rpc::pack(value), true, timeout, site)
      .then([f = std::move(f)](rpc::Result<Objects>&& all) mutable {
        return rpc::capture([&]() -> T {
          std::vector<T> values = detail::unpack_all<T>(std::move(all)).get();
          T reduced = std::move(values.front());
          for (std::size_t rank = 1; rank < values.size(); ++rank)
            reduced = f(std::move(reduced), std::move(values[rank]));
          return reduced;
        });
      });
}

template <rpc::Transferable T>
rpc::Future<void> Group::send_object(const T& value, int to, std::uint64_t tag, Timeout timeout,
                                     Site site) const {
  return send_packed("object " + rpc::type_text<T>(), rpc::pack(value), to, tag, timeout, site);
}

template <rpc::Transferable T>
rpc::Future<T> Group::recv_object(int from, std::uint64_t tag, Timeout timeout, Site site) const {
  return receive_packed("object " + rpc::type_text<T>(), from, tag, timeout, site)
      .then([](rpc::Result<rpc::Buffer>&& bytes) {
        return rpc::capture([&] { return rpc::unpack<T>(std::move(bytes).get()); });
      });
}

}  // namespace weft::collectives
