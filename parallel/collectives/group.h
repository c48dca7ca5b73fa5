// Group: ranks that act together, each a member of a job; its collectives move tensors between them.
//
//   auto group = co_await collectives::Group::create(agent);      // all of the job, by rank
//   co_await group.all_reduce(gradient, ReduceOp::avg);
//
// Every rank begins the same collectives of a group in the same order; several may be under way. Their
// shapes, dtypes, roots and operations are compared: where they differ each rank gets invalid_argument,
// naming who means what and where in its program, and the group goes on. Whatever else goes wrong ends the
// group for all its ranks, with one error: deadline_exceeded, naming who has not begun the collective;
// peer_lost or shut_down, naming who died or left with work to do; aborted, naming who cancelled a future or
// called abort(). All further collectives fail with it. What an output holds after an error is not said.
//
// Tensors are of any dtype (reductions: reduction.h), contiguous or not, also empty; inputs may be expanded.
// They are lent until the future is complete: nobody writes to an input, nobody touches an output. Tensors of
// a GPU go by NCCL, on the current stream, and are contiguous (prepare(); docs/nccl.md). Autograd does not
// see collectives (functional.h has those that it records). Results are the same bits on every rank and in
// every run. Collectives run and their futures complete on threads of the agent and of the group, except
// those of inlined(); cancel() aborts. A group is a handle: copies are the same group. Thread-safe; which of
// two threads begins first is for the program to order, the same on all ranks.
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
// How its members reach each other's tensors.
enum class GroupBackend : std::uint8_t {
  messages,
  memory,  // which all share
  hosts,   // in memory on each host, by messages between them
};
struct Rendezvous;
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

struct GroupOptions {
  std::string name = "world";        // the same on all members; names are there to be used again
  std::vector<std::string> members;  // by rank; empty: all of a fixed world, by theirs
  // Of collectives that give none, and of the members' rendezvous in create(). From when a rank begins.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
  // float16 or bfloat16: as which all_reduce sends what it sums in float32, where that is more than a little
  // (plan/choice.h). Half the bytes for results that have been rounded as often as there are ranks, and are
  // of that precision; the same bits on all ranks all the same. None where ranks share memory, and of
  // float64.
  std::optional<at::ScalarType> wire_dtype = {};
  Bounds bounds = {};  // where messages change their ways; alike on all members
  // Whether members that are all on one host, of one user, act in memory that they share; and how many bytes
  // of addresses each has there for tensors of empty(); members of a host that differ do not share.
  bool shared_memory = true;
  std::size_t shared_bytes = std::size_t{16} << 30;
  // Where members are on several hosts, two or more of them on one, members of a host act in memory, and
  // hosts exchange messages. A name for where this member is within what the system calls one host: members
  // of different names are taken to be on different ones (sockets of a machine, say).
  std::string host = {};
  // A folder into which each member writes what it did of late and what it waits for, when the group fails:
  // `weft flight FOLDER` says what that means. Empty: $WEFT_FLIGHT_RECORDER_DIR; nowhere, where that is not
  // set.
  std::filesystem::path flight_recorder_dir = {};
  // Limits of what this member keeps for collectives that other members have begun and this one has not.
  // Beyond a limit the group fails with resource_exhausted.
  std::size_t max_early_messages = 64 << 10;
  std::size_t max_early_bytes = std::size_t{1} << 30;
};

class WEFT_EXPORT Group {
 public:
  using Site = std::source_location;

  // Of all members at once; the agent has collectives::layer(), has joined its job, and outlives the future.
  // Ends as Job::all_gather does; invalid_argument where this agent is no member, or one is named twice. A
  // group grows by a new one, of its members and those that have come.
  static rpc::Future<Group> create(rpc::Agent& agent, GroupOptions options);
  // With the default options. An overload: g++ 12 destroys a default argument twice in a co_await expression.
  static rpc::Future<Group> create(rpc::Agent& agent) { return create(agent, GroupOptions{}); }

  // Of all members at once, in one order with whatever else they do: those of one color make a group, in the
  // order of their keys, then of their ranks here; a member that gives no color gets no group. Options are
  // this group's where none are given, and the name is this group's with the color unless one is given.
  rpc::Future<std::optional<Group>> split(std::optional<int> color, int key = 0,
                                          std::optional<GroupOptions> options = {},
                                          Site site = Site::current()) const;
  // A group of the members that still live, in their order here, of all of them at once: after a loss has
  // ended this group, in a world that is not fixed. Its options are this group's.
  rpc::Future<Group> shrink(rpc::Agent& agent) const;

  const std::string& name() const;
  const GroupOptions& options() const;
  int rank() const;
  int size() const;
  std::vector<std::string> members() const;  // names, by rank

  // The same group, whose collectives start to run on the calling thread: for a caller that waits for the
  // result at once. In shared memory the caller runs up to 1 MiB, for as long as the other ranks come within
  // 50 µs each. By messages it runs what can run without waiting, and first what other threads have started.
  Group inlined() const;

  // A tensor in the memory that the members share, where collectives need not copy it; ordinary memory where
  // they share none, or it is used up. Throws resource_exhausted where the host has none left. It stays when
  // the group goes; what was an output of a collective that failed is not to be used any more.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options = {}) const;
  GroupBackend backend() const;

  // Of all members at once: makes what collectives on that device of this member need, of which a group uses
  // one. Complete when all have it; unsupported, on all, where one cannot. Without it the first collective
  // does this, and blocks its thread; messages between devices need it.
  rpc::Future<void> prepare(c10::Device device, Timeout timeout = {}, Site site = Site::current()) const;

  // tensor: of one shape on all ranks; afterwards the reduction of all.
  rpc::Future<void> all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                               Site site = Site::current()) const;
  // Of several tensors, of one dtype, in one collective; so below. Tensors that lie one after the other in
  // one storage, contiguous and in the order given, are not copied.
  rpc::Future<void> all_reduce(std::vector<at::Tensor> tensors, ReduceOp op = ReduceOp::sum,
                               Timeout timeout = {}, Site site = Site::current()) const;
  // The same at the root alone: other ranks' tensors stay as they are.
  rpc::Future<void> reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                           Site site = Site::current()) const;
  rpc::Future<void> broadcast(at::Tensor tensor, int root, Timeout timeout = {},
                              Site site = Site::current()) const;
  rpc::Future<void> broadcast(std::vector<at::Tensor> tensors, int root, Timeout timeout = {},
                              Site site = Site::current()) const;
  // output: size() × as many elements as input, rank after rank. In place: input is exactly part rank() of
  // the output's memory, which is then not copied; so below, with the part of the output that is this rank's.
  // Any other overlap of inputs and outputs is invalid_argument.
  rpc::Future<void> all_gather(at::Tensor output, at::Tensor input, Timeout timeout = {},
                               Site site = Site::current()) const;
  // outputs[i] of inputs[i].
  rpc::Future<void> all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                               Timeout timeout = {}, Site site = Site::current()) const;
  // outputs: one a rank, of sizes that may differ, alike on all; input: as large as outputs[rank()].
  rpc::Future<void> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Timeout timeout = {},
                                 Site site = Site::current()) const;
  // input: size() × as many elements as output, which becomes this rank's part of the reduction of all. In
  // place: output is exactly part rank() of the input's memory; so below. Any other overlap is
  // invalid_argument.
  rpc::Future<void> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                   Timeout timeout = {}, Site site = Site::current()) const;
  rpc::Future<void> reduce_scatter(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                   ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                                   Site site = Site::current()) const;
  rpc::Future<void> reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs,
                                     ReduceOp op = ReduceOp::sum, Timeout timeout = {},
                                     Site site = Site::current()) const;
  // Both of one size on all ranks, size() equal parts: part i of the input becomes part rank() of rank i's
  // output.
  rpc::Future<void> all_to_all(at::Tensor output, at::Tensor input, Timeout timeout = {},
                               Site site = Site::current()) const;
  // One a rank, of any sizes: rank i's outputs[rank()] is as large as this rank's inputs[i]. Where two differ
  // in that the group ends with invalid_argument, which names both; it may have ended well for who agrees
  // with all.
  rpc::Future<void> all_to_all_v(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                 Timeout timeout = {}, Site site = Site::current()) const;
  // outputs, inputs: one a rank, all of one shape, at the root; none elsewhere.
  rpc::Future<void> gather(std::vector<at::Tensor> outputs, at::Tensor input, int root, Timeout timeout = {},
                           Site site = Site::current()) const;
  rpc::Future<void> scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root, Timeout timeout = {},
                            Site site = Site::current()) const;
  // Complete when all ranks are at it; past the deadline the error names who is not.
  rpc::Future<void> barrier(Timeout timeout = {}, Site site = Site::current()) const;

  // For collectives that ranks become ready for in different orders. All ranks call launch() with the same
  // names, in any order and on any threads. `begin` begins collectives of this group; it runs once all ranks
  // have called launch() with that name, and all ranks run the functions in one order. They run one at a time
  // on a thread of the agent, with the caller's LibTorch thread state, and must not block; on a device they
  // set the stream. A name may be used again once its function has run. Other collectives of the group stay
  // in the program's order only if no launch is in flight. Completes with the future that `begin` returns.
  // deadline: for all ranks to be ready; the error names those that are not.
  using LaunchFunction = rpc::UniqueFunction<rpc::Future<void>()>;
  rpc::Future<void> launch(const std::string& name, LaunchFunction begin, Timeout timeout = {},
                           Site site = Site::current()) const;

  // Between two ranks, beside the collectives: the tensors are of one dtype and shape, else both get
  // invalid_argument. Messages of one sender and tag are received in the order in which they were sent.
  // Complete when the receiver has it.
  rpc::Future<void> send(at::Tensor tensor, int to, std::uint64_t tag = 0, Timeout timeout = {},
                         Site site = Site::current()) const;
  rpc::Future<void> recv(at::Tensor tensor, int from, std::uint64_t tag = 0, Timeout timeout = {},
                         Site site = Site::current()) const;
  // The tensor as its sender has it, of any dtype and shape, in the host's memory; received in order with
  // those of known shape. Its size is bounded as that of every message (rpc::Limits). A send on a device is
  // not received: recv() with a tensor there.
  rpc::Future<at::Tensor> recv_tensor(int from, std::uint64_t tag = 0, Timeout timeout = {},
                                      Site site = Site::current()) const;
  // The first that comes of the tag; gives its sender's rank. unsupported on a device.
  rpc::Future<int> recv_any(at::Tensor tensor, std::uint64_t tag = 0, Timeout timeout = {},
                            Site site = Site::current()) const;

  // All of them at once, in any order; complete when all are, with the first error in the order given. On one
  // device, or none.
  rpc::Future<void> batch(std::vector<PointToPoint> messages, Timeout timeout = {},
                          Site site = Site::current()) const;

  // Values of a program's own types, small ones: they go by way of rank 0, and are checked as tensors are.
  // Of one type on all ranks.
  template <rpc::Transferable T>
  rpc::Future<std::vector<T>> all_gather_object(const T& value, Timeout timeout = {},
                                                Site site = Site::current()) const;
  template <rpc::Transferable T>  // at the root, by rank; elsewhere nothing
  rpc::Future<std::vector<T>> gather_object(const T& value, int root, Timeout timeout = {},
                                            Site site = Site::current()) const;
  template <rpc::Transferable T>  // the root's
  rpc::Future<T> broadcast_object(const T& value, int root, Timeout timeout = {},
                                  Site site = Site::current()) const;
  template <rpc::Transferable T>  // this rank's of the root's, which has one a rank
  rpc::Future<T> scatter_object(const std::vector<T>& values, int root, Timeout timeout = {},
                                Site site = Site::current()) const;

  template <rpc::Transferable T>  // values: one a rank, for it; gives those for this rank, by theirs
  rpc::Future<std::vector<T>> all_to_all_object(const std::vector<T>& values, Timeout timeout = {},
                                                Site site = Site::current()) const;
  // f(T, T) of all values, in the order of ranks: (((0, 1), 2), …). f is the same on all ranks.
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

  // Writes the same now, into that folder; gives the file. failed_precondition where it cannot be written.
  std::filesystem::path write_flight(const std::filesystem::path& folder) const;

  // Ends the group, for all its ranks.
  void abort(const std::string& reason) const;

  const std::shared_ptr<rpc::AgentCore>& agent() const;  // for layers above

 private:
  friend class DeviceMesh;
  explicit Group(std::shared_ptr<GroupCore> core) : core_(std::move(core)) {}
  static std::optional<Group> make(const std::shared_ptr<CollectivesLayer>& layer, Rendezvous rendezvous,
                                   const GroupOptions& options);
  static void try_to_shrink(rpc::Agent& agent, const Group& old,
                            const std::shared_ptr<rpc::Promise<Group>>& promise);
  // In two rounds of values, of which these are the first's number and the next.
  rpc::Future<std::optional<Group>> split_in(std::uint64_t rounds, std::optional<int> color, int key,
                                             const GroupOptions& options, const Site& site) const;
  rpc::Future<void> run(const CollectiveCall& call) const;
  // One object a rank, packed; none of those that are not wanted.
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
    return std::string(operation) + "(" + rpc::type_text<T>();
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
