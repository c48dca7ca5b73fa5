// Group: a process group, whose ranks are members of a job. Its collectives move tensors between them.
//
//   auto group = co_await collectives::Group::create(agent);      // all of the job, by rank
//   co_await group.all_reduce(gradient, ReduceOp::avg);
//
// Every rank calls the same collectives of a group in the same order; several may be in flight. The ranks'
// shapes, dtypes, roots and operations are compared. If they differ, each rank gets invalid_argument, which
// lists the operation and source location of each rank, and the group remains usable. All other errors end
// the group on all its ranks, with one error: deadline_exceeded, which names the ranks that have not started
// the collective; peer_lost or shut_down, which names the member that died or left while it was needed;
// aborted, which names the member that cancelled a future or called abort(). All further collectives fail
// with it. Outputs are unspecified after an error.
//
// Tensors may have any dtype (reductions: reduction.h), be contiguous or not, and be empty; inputs may be
// expanded. They are borrowed until the future completes: do not write to an input or access an output
// before. Tensors of a GPU use NCCL, on the current stream, and must be contiguous (docs/internals/nccl.md).
// Autograd does not record these collectives (functional.h has those that it records). Results have the same
// bits on every rank and in every run. Collectives run and their futures complete on threads of the agent and
// of the group, except those of inlined(); cancel() aborts. A group is a handle: copies refer to the same
// group. Thread-safe; the program must order the collectives of different threads, equally on all ranks.
#pragma once

#include <weft/parallel/collectives/operation/point_to_point.h>
#include <weft/parallel/collectives/operation/reduce_op.h>
#include <weft/parallel/collectives/plan/bounds.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/codec/packed.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

namespace weft::collectives {

class CollectivesLayer;
struct CollectiveCall;
class GroupCore;
// How its members access each other's tensors.
enum class GroupBackend : std::uint8_t {
  messages,
  memory,  // shared by all
  hosts,   // in memory on each host, by messages between hosts
};
struct Rendezvous;
// From the call of an operation. None: GroupOptions::timeout.
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

// create() fails unless name, members, wire_dtype and bounds are equal on all members. The other options may
// differ between members.
struct GroupOptions {
  std::string name = "world";        // the same on all members; a name may be used again
  std::vector<std::string> members;  // by rank; empty: all members of a fixed world, by their ranks
  // The default of collectives, and the timeout of the members' rendezvous in create(). Starts when a rank
  // starts the operation.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
  // float16 or bfloat16: the type in which all_reduce sends float32, except for small tensors
  // (plan/choice.h). It halves the bytes. Results are rounded once for each rank, and have that precision;
  // they have the same bits on all ranks. No effect if ranks share memory, or for float64.
  std::optional<at::ScalarType> wire_dtype = {};
  Bounds bounds = {};  // where messages change the algorithm; must be equal on all members
  // Whether members on one host, of one user, use shared memory; and the number of bytes of addresses that
  // each has there for tensors of empty(). Members of a host with different values do not share memory.
  bool shared_memory = true;
  std::size_t shared_bytes = std::size_t{16} << 30;
  // If members are on several hosts, and at least two of them on one, members of a host use memory, and hosts
  // exchange messages. A name for a part of what the operating system calls one host: members with different
  // names count as members of different hosts (for example sockets of a machine).
  std::string host = {};
  // A folder into which each member writes its latest operations and its waits when the group fails; `weft
  // flight FOLDER` analyses them. Empty: $WEFT_FLIGHT_RECORDER_DIR; if that is not set, nothing is written.
  std::filesystem::path flight_recorder_dir = {};
  // Limits of the data that this member keeps for collectives that other members have started and it has not.
  // Beyond a limit the group fails with resource_exhausted.
  std::size_t max_early_messages = 64 << 10;
  std::size_t max_early_bytes = std::size_t{1} << 30;
};

class WEFT_EXPORT Group {
 public:
  // Where the program calls an operation. Leave the parameter at its default: the location is part of errors
  // and of the flight recorder.
  using Site = std::source_location;

  // Call it on all members. The agent has collectives::layer(), has joined its job, and outlives the future.
  // Errors: those of Job::all_gather; invalid_argument if this agent is no member, or if a member occurs
  // twice. To grow a group, create a new one, of its members and those that have joined.
  static rpc::Future<Group> create(rpc::Agent& agent, GroupOptions options);
  // With the default options. An overload: g++ 12 destroys a default argument twice in a co_await expression.
  static rpc::Future<Group> create(rpc::Agent& agent) { return create(agent, GroupOptions{}); }

  // Call it on all members, in one order with all other operations: the members with one color form a group,
  // ordered by their keys, then by their ranks here. A member without a color gets no group. The default of
  // the options is that of this group, and the default of the name is this group's name with the color.
  rpc::Future<std::optional<Group>> split(std::optional<int> color, int key = 0,
                                          std::optional<GroupOptions> options = {},
                                          Site site = Site::current()) const;
  // A group of the members that still live, in their order here. Call it on all of them, after a loss has
  // ended this group, in a world that is not fixed. It has the options of this group.
  rpc::Future<Group> shrink(rpc::Agent& agent) const;

  // The name; the options with which the group was created; this member's rank; the number of members.
  // Constant, also after the group has ended. After split(), options().members is not the list of members:
  // use members().
  const std::string& name() const;
  const GroupOptions& options() const;
  int rank() const;
  int size() const;

  std::vector<std::string> members() const;  // names, by rank

  // The same group, whose collectives start to run on the calling thread: for a caller that waits for the
  // result at once. In shared memory the caller runs up to 1 MiB, as long as the other ranks arrive within 50
  // µs each. By messages it runs all work that can run without waiting, and first the work that other threads
  // have started.
  Group inlined() const;

  // A tensor in the members' shared memory, where collectives need not copy it; in ordinary memory if they
  // share none, or if the shared memory is used up. Throws resource_exhausted if the host has no memory left.
  // The tensor outlives the group. An output of a failed collective must not be used any more.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options = {}) const;
  // How the members access each other's tensors. Constant: create() determines it.
  GroupBackend backend() const;

  // Call it on all members: creates the resources of collectives on that device of this member; a group uses
  // one device. Completes when all members have them; unsupported, on all, if one member cannot. Without it
  // the first collective does this, and blocks its thread. Messages between devices need it.
  rpc::Future<void> prepare(c10::Device device, Timeout timeout = {}, Site site = Site::current()) const;

  // tensor: of one shape on all ranks; the result is the reduction of all.
  rpc::Future<void> all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                               Site site = Site::current()) const;
  // For several tensors, of one dtype, in one collective; the same applies below. Tensors that are adjacent
  // in one storage, contiguous and in the given order, are not copied.
  rpc::Future<void> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op = ReduceOp::sum,
                               Timeout timeout = {}, Site site = Site::current()) const;
  // The same at the root only: the tensors of other ranks do not change.
  rpc::Future<void> reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                           Site site = Site::current()) const;
  // tensor: of one shape on all ranks; the tensors of all ranks become the root's.
  rpc::Future<void> broadcast(at::Tensor tensor, int root, Timeout timeout = {},
                              Site site = Site::current()) const;
  rpc::Future<void> broadcast(std::vector<at::Tensor> tensors, int root, Timeout timeout = {},
                              Site site = Site::current()) const;
  // output: size() × as many elements as input, rank after rank. In place: input is exactly part rank() of
  // the output's memory, which is then not copied; the same applies below, with this rank's part of the
  // output. Any other overlap of inputs and outputs is invalid_argument.
  rpc::Future<void> all_gather(at::Tensor output, at::Tensor input, Timeout timeout = {},
                               Site site = Site::current()) const;
  // outputs[i] gathers inputs[i].
  rpc::Future<void> all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                               Timeout timeout = {}, Site site = Site::current()) const;
  // outputs: one for each rank, of sizes that may differ but are equal on all ranks; input: as large as
  // outputs[rank()].
  rpc::Future<void> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Timeout timeout = {},
                                 Site site = Site::current()) const;
  // input: size() × as many elements as output, which becomes this rank's part of the reduction of all. In
  // place: output is exactly part rank() of the input's memory; the same applies below. Any other overlap is
  // invalid_argument.
  rpc::Future<void> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                   Timeout timeout = {}, Site site = Site::current()) const;
  // outputs[i] becomes this rank's part of the reduction of all inputs[i].
  rpc::Future<void> reduce_scatter(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                   ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                                   Site site = Site::current()) const;
  // inputs: one for each rank, of sizes that may differ but are equal on all ranks; output: as large as
  // inputs[rank()], becomes the reduction of these inputs of all ranks.
  rpc::Future<void> reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs,
                                     ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                                     Site site = Site::current()) const;
  // Both of one size on all ranks, divided into size() equal parts: part i of the input becomes part rank()
  // of rank i's output.
  rpc::Future<void> all_to_all(at::Tensor output, at::Tensor input, Timeout timeout = {},
                               Site site = Site::current()) const;
  // One for each rank, of any sizes: rank i's outputs[rank()] must be as large as this rank's inputs[i]. If
  // two ranks differ in a size, the group fails with invalid_argument, which names both. Ranks that agree
  // with all others may have completed the operation.
  rpc::Future<void> all_to_all_v(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                 Timeout timeout = {}, Site site = Site::current()) const;
  // outputs, inputs: one for each rank, all of one shape, at the root; empty elsewhere. gather() copies the
  // input of rank i to the root's outputs[i], scatter() the root's inputs[i] to the output of rank i.
  rpc::Future<void> gather(std::vector<at::Tensor> outputs, at::Tensor input, int root, Timeout timeout = {},
                           Site site = Site::current()) const;
  rpc::Future<void> scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root, Timeout timeout = {},
                            Site site = Site::current()) const;
  // Completes when all ranks have called it; after the deadline the error names those that have not.
  rpc::Future<void> barrier(Timeout timeout = {}, Site site = Site::current()) const;

  // For collectives that become ready in different orders on different ranks. All ranks call launch() with
  // the same names, in any order and on any threads. `begin` starts collectives of this group. It runs once
  // all ranks have called launch() with that name, and all ranks run the functions in one order. They run one
  // at a time on a thread of the agent, with the caller's LibTorch thread state, and must not block; on a
  // device they set the stream. A name may be used again once its function has run. Other collectives of the
  // group keep the program's order only if no launch is in flight. Completes with the future that `begin`
  // returns. deadline: for all ranks to be ready; the error names those that are not.
  using LaunchFunction = rpc::UniqueFunction<rpc::Future<void>()>;
  rpc::Future<void> launch(const std::string& name, LaunchFunction begin, Timeout timeout = {},
                           Site site = Site::current()) const;

  // Between two ranks, independent of collectives. The tensors must have one dtype and shape; otherwise both
  // ranks get invalid_argument. Messages of one sender and tag are received in the order in which they were
  // sent. Completes when the receiver has the tensor.
  rpc::Future<void> send(at::Tensor tensor, int to, std::uint64_t tag = 0, Timeout timeout = {},
                         Site site = Site::current()) const;
  rpc::Future<void> recv(at::Tensor tensor, int from, std::uint64_t tag = 0, Timeout timeout = {},
                         Site site = Site::current()) const;
  // Receives a tensor of any dtype and shape, in the host's memory, in order with tensors of known shape. Its
  // size is bounded as that of every message (rpc::Limits). It does not receive a send on a device: use
  // recv() with a tensor there.
  rpc::Future<at::Tensor> recv_tensor(int from, std::uint64_t tag = 0, Timeout timeout = {},
                                      Site site = Site::current()) const;
  // Receives the first message with that tag; returns its sender's rank. unsupported on a device.
  rpc::Future<int> recv_any(at::Tensor tensor, std::uint64_t tag = 0, Timeout timeout = {},
                            Site site = Site::current()) const;

  // Starts all of them together, in any order; completes when all have completed, with the first error in the
  // given order. On one device, or none.
  rpc::Future<void> batch(std::vector<PointToPoint> messages, Timeout timeout = {},
                          Site site = Site::current()) const;

  // For small values of a program's own types: they are sent through rank 0, and compared as tensors are. Of
  // one type on all ranks.
  template <rpc::Transferable T>
  rpc::Future<std::vector<T>> all_gather_object(const T& value, Timeout timeout = {},
                                                Site site = Site::current()) const;
  template <rpc::Transferable T>  // at the root: by rank; elsewhere: empty
  rpc::Future<std::vector<T>> gather_object(const T& value, int root, Timeout timeout = {},
                                            Site site = Site::current()) const;
  template <rpc::Transferable T>  // the root's value
  rpc::Future<T> broadcast_object(const T& value, int root, Timeout timeout = {},
                                  Site site = Site::current()) const;
  template <rpc::Transferable T>  // this rank's value of the root's, which has one for each rank
  rpc::Future<T> scatter_object(const std::vector<T>& values, int root, Timeout timeout = {},
                                Site site = Site::current()) const;

  // values: one for each rank. Returns the values for this rank, by their senders.
  template <rpc::Transferable T>
  rpc::Future<std::vector<T>> all_to_all_object(const std::vector<T>& values, Timeout timeout = {},
                                                Site site = Site::current()) const;
  // f(T, T) over all values, in the order of ranks: (((0, 1), 2), …). f must be the same on all ranks.
  template <rpc::Transferable T, class F>
  rpc::Future<T> all_reduce_object(const T& value, F f, Timeout timeout = {},
                                   Site site = Site::current()) const;
  // Between two ranks, as send and recv: of one type on both, of any size.
  template <rpc::Transferable T>
  rpc::Future<void> send_object(const T& value, int to, std::uint64_t tag = 0, Timeout timeout = {},
                                Site site = Site::current()) const;
  template <rpc::Transferable T>
  rpc::Future<T> recv_object(int from, std::uint64_t tag = 0, Timeout timeout = {},
                             Site site = Site::current()) const;

  // Writes the file of GroupOptions::flight_recorder_dir now, into that folder; returns its path.
  // failed_precondition if it cannot be written.
  std::filesystem::path write_flight(const std::filesystem::path& folder) const;

  // Ends the group, and the groups that were split from it, on all their ranks. If the group has ended
  // before, only those of the latter that this rank is a member of.
  void abort(const std::string& reason) const;

  const std::shared_ptr<rpc::AgentCore>& agent() const;  // for higher layers

 private:
  friend class DeviceMesh;
  explicit Group(std::shared_ptr<GroupCore> core) : core_(std::move(core)) {}
  static std::optional<Group> make(const std::shared_ptr<CollectivesLayer>& layer, Rendezvous rendezvous,
                                   const GroupOptions& options);
  static void try_to_shrink(rpc::Agent& agent, const Group& old,
                            const std::shared_ptr<rpc::Promise<Group>>& promise);
  // In two rounds of values: the given number and the next one.
  rpc::Future<std::optional<Group>> split_in(std::uint64_t rounds, std::optional<int> color, int key,
                                             const GroupOptions& options, const Site& site) const;
  rpc::Future<void> run(const CollectiveCall& call) const;
  // One object for each rank, packed; empty for those that are not requested.
  using Objects = std::vector<rpc::Buffer>;
  rpc::Future<Objects> give(const std::string& meaning, std::optional<int> root, rpc::Buffer object,
                            bool wants_all, Timeout timeout, const Site& site) const;
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
