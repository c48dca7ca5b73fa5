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
// Tensors live in this host's memory, are of any dtype (reductions: reduction.h), contiguous or not, also
// empty; inputs may be expanded. They are lent until the future is complete: nobody writes to an input,
// nobody touches an output. Autograd does not see collectives. Results are the same bits on every rank and in
// every run. Futures complete on the agent's threads; cancel() aborts. A group is a handle: copies are the
// same group. Thread-safe; which of two threads begins first is for the program to order, alike on all ranks.
#pragma once

#include <weft/parallel/collectives/reduce_op.h>
#include <weft/rpc/agent/agent.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

namespace weft::collectives {

class GroupCore;
using Deadline = std::optional<std::chrono::nanoseconds>;

struct GroupOptions {
  std::string name = "world";        // the same on all members; names are there to be used again
  std::vector<std::string> members;  // by rank; empty: all of a fixed world, by theirs
  // Of collectives that give none, and of the members' meeting in create(). From when a rank begins.
  std::chrono::nanoseconds deadline = std::chrono::minutes{10};
  // Whether members that are all on one host, of one user, act in memory that they share; and how many bytes
  // of addresses each has there for the tensors of empty(). Alike on all members.
  bool shared_memory = true;
  std::size_t shared_bytes = std::size_t{16} << 30;
};

class WEFT_EXPORT Group {
 public:
  using Site = std::source_location;

  // Of all members at once; the agent has collectives::layer() and has joined its job. Ends as
  // Agent::all_gather does; invalid_argument where this agent is no member, or one is named twice.
  static rpc::Future<Group> create(rpc::Agent& agent, GroupOptions options = {});

  const std::string& name() const;
  int rank() const;
  int size() const;
  std::vector<std::string> members() const;  // names, by rank

  // A tensor in the memory that the members share, where collectives need not copy it; ordinary memory where
  // they share none, or it is used up. Throws resource_exhausted where the host has none left. It stays when
  // the group goes; what was an output of a collective that failed is not to be used any more.
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options = {}) const;
  bool shares_memory() const;

  // tensor: of one shape on all ranks; afterwards the reduction of all.
  rpc::Future<void> all_reduce(at::Tensor tensor, ReduceOp op = ReduceOp::sum, Deadline deadline = {},
                               Site site = Site::current()) const;
  // The same at the root alone: other ranks' tensors stay as they are.
  rpc::Future<void> reduce(at::Tensor tensor, int root, ReduceOp op = ReduceOp::sum, Deadline deadline = {},
                           Site site = Site::current()) const;
  rpc::Future<void> broadcast(at::Tensor tensor, int root, Deadline deadline = {},
                              Site site = Site::current()) const;
  // output: size() × as many elements as input, rank after rank.
  rpc::Future<void> all_gather(at::Tensor output, at::Tensor input, Deadline deadline = {},
                               Site site = Site::current()) const;
  // outputs: one a rank, of sizes that may differ, alike on all; input: as large as outputs[rank()].
  rpc::Future<void> all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Deadline deadline = {},
                                 Site site = Site::current()) const;
  // input: size() × as many elements as output, which becomes this rank's part of the reduction of all.
  rpc::Future<void> reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op = ReduceOp::sum,
                                   Deadline deadline = {}, Site site = Site::current()) const;
  rpc::Future<void> reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs,
                                     ReduceOp op = ReduceOp::sum, Deadline deadline = {},
                                     Site site = Site::current()) const;
  // Both of one size on all ranks, size() equal parts: part i of the input becomes part rank() of rank i's
  // output.
  rpc::Future<void> all_to_all(at::Tensor output, at::Tensor input, Deadline deadline = {},
                               Site site = Site::current()) const;
  // One a rank, of any sizes: rank i's outputs[rank()] is as large as this rank's inputs[i].
  rpc::Future<void> all_to_all_v(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                 Deadline deadline = {}, Site site = Site::current()) const;
  // outputs, inputs: one a rank, all of one shape, at the root; none elsewhere.
  rpc::Future<void> gather(std::vector<at::Tensor> outputs, at::Tensor input, int root,
                           Deadline deadline = {}, Site site = Site::current()) const;
  rpc::Future<void> scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root,
                            Deadline deadline = {}, Site site = Site::current()) const;
  // Complete when all ranks are at it; past the deadline the error names who is not.
  rpc::Future<void> barrier(Deadline deadline = {}, Site site = Site::current()) const;

  // Between two ranks, beside the collectives: the tensors are of one dtype and shape, else both get
  // invalid_argument. Messages of one sender and tag are received in the order in which they were sent.
  // Complete when the receiver has it.
  rpc::Future<void> send(at::Tensor tensor, int to, std::uint64_t tag = 0, Deadline deadline = {},
                         Site site = Site::current()) const;
  rpc::Future<void> recv(at::Tensor tensor, int from, std::uint64_t tag = 0, Deadline deadline = {},
                         Site site = Site::current()) const;
  // The first that comes of the tag; gives its sender's rank.
  rpc::Future<int> recv_any(at::Tensor tensor, std::uint64_t tag = 0, Deadline deadline = {},
                            Site site = Site::current()) const;

  // Ends the group, for all its ranks.
  void abort(const std::string& reason) const;

 private:
  explicit Group(std::shared_ptr<GroupCore> core) : core_(std::move(core)) {}
  rpc::Future<int> receive(at::Tensor tensor, std::optional<int> from, std::uint64_t tag, Deadline deadline,
                           const Site& site) const;
  std::shared_ptr<GroupCore> core_;
};

}  // namespace weft::collectives
