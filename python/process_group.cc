#include "process_group.h"

#include "gil.h"
#include "work.h"
#include "world.h"

#include <weft/rpc/core/shared_future.h>
#include <weft/rpc/core/when_all.h>

#include <c10/util/Exception.h>
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

namespace weft::python {

using collectives::Group;
using collectives::Timeout;
using rpc::Future;
using rpc::Result;

namespace {

collectives::ReduceOp reduction(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return collectives::ReduceOp::sum;
    case c10d::ReduceOp::AVG:
      return collectives::ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT:
      return collectives::ReduceOp::product;
    case c10d::ReduceOp::MIN:
      return collectives::ReduceOp::min;
    case c10d::ReduceOp::MAX:
      return collectives::ReduceOp::max;
    case c10d::ReduceOp::BAND:
      return collectives::ReduceOp::bit_and;
    case c10d::ReduceOp::BOR:
      return collectives::ReduceOp::bit_or;
    case c10d::ReduceOp::BXOR:
      return collectives::ReduceOp::bit_xor;
    case c10d::ReduceOp::PREMUL_SUM: {
      const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK(factor != nullptr, "weft: PREMUL_SUM has no factor");
      return collectives::ReduceOp::premul_sum(
          factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor);
    }
    default:
      TORCH_CHECK(false, "weft: unknown ReduceOp ", static_cast<int>(op.op_));
  }
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* operation) {
  TORCH_CHECK(tensors.size() == 1, "weft: ", operation, ": ", tensors.size(), " tensors, expected one");
  return tensors.front();
}

// What a rank other than the root passes may be empty.
template <class T>
T list_of(const std::vector<T>& lists, const char* operation) {
  TORCH_CHECK(lists.size() <= 1, "weft: ", operation, ": ", lists.size(), " lists of tensors, expected one");
  return lists.empty() ? T() : lists.front();
}

// The parts of a tensor along its first dimension. sizes: empty for equal parts.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes,
                                 int ranks) {
  if (sizes.empty()) {
    TORCH_CHECK(tensor.size(0) % ranks == 0,
                "Tensor's dim 0 does not divide equally across group size: ", tensor.size(0), " and ", ranks);
    return tensor.tensor_split(ranks);
  }
  TORCH_CHECK(static_cast<int>(sizes.size()) == ranks,
              "Number of tensor splits not equal to group size: ", sizes.size(), " and ", ranks);
  return tensor.split_with_sizes(sizes);
}

// The options of an operation that states no timeout.
struct NoOptions {
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  bool asyncOp = true;
};

// nullopt: not a collective.
std::optional<collectives::Operation> collective_of(c10d::OpType operation) {
  using collectives::Operation;
  switch (operation) {
    case c10d::OpType::BROADCAST:
      return Operation::broadcast;
    case c10d::OpType::ALLREDUCE:
    case c10d::OpType::ALLREDUCE_COALESCED:
      return Operation::all_reduce;
    case c10d::OpType::REDUCE:
      return Operation::reduce;
    case c10d::OpType::ALLGATHER:
    case c10d::OpType::ALLGATHER_COALESCED:  // one for each input
      return Operation::all_gather_v;
    case c10d::OpType::_ALLGATHER_BASE:
    case c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED:
      return Operation::all_gather;
    case c10d::OpType::GATHER:
      return Operation::gather;
    case c10d::OpType::SCATTER:
      return Operation::scatter;
    case c10d::OpType::REDUCE_SCATTER:
      return Operation::reduce_scatter_v;
    case c10d::OpType::_REDUCE_SCATTER_BASE:
    case c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED:
      return Operation::reduce_scatter;
    case c10d::OpType::ALLTOALL_BASE:
    case c10d::OpType::ALLTOALL:
      return Operation::all_to_all_v;
    default:
      return std::nullopt;
  }
}

Future<int> as_source(Future<void> done) {
  return done.then(
      [](Result<void>&& done) { return done.ok() ? Result<int>(-1) : Result<int>(done.error()); });
}
Future<int> as_source(Future<int> done) { return done; }

}  // namespace

// --- The group ---

ProcessGroup::ProcessGroup(int rank, int size, c10::intrusive_ptr<Options> options)
    : Backend(rank, size), options_(std::move(options)) {}

ProcessGroup::~ProcessGroup() { shutdown(); }

c10::intrusive_ptr<ProcessGroup> ProcessGroup::create(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                      int size, c10::intrusive_ptr<Options> options,
                                                      const ProcessGroup* parent) {
  return with_torch_errors([&] {
    if (parent != nullptr) {
      const auto& given = options->global_ranks_in_group;
      const std::vector<int> ranks(given.begin(), given.end());
      return parent->among(ranks, std::move(options));
    }
    auto made = c10::make_intrusive<ProcessGroup>(rank, size, options);
    if (options->enable_reconfigure) {
      made->store_ = store;
      made->handle_ = std::to_string(rank);  // unique among the processes that share the store
    } else {
      made->enter(make(std::make_shared<World>(*store, rank, size, options->timeout), {}, *options,
                       options->timeout));
    }
    return made;
  });
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::split(
    const c10::intrusive_ptr<c10d::Store>&, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  if (std::ranges::find(ranks, getRank()) == ranks.end()) return nullptr;
  auto own = c10::make_intrusive<Options>(options_->backend, options->timeout);
  own->group_name = options->group_name;
  own->group_desc = options->group_desc;
  own->global_ranks_in_group = options->global_ranks_in_group;
  return with_torch_errors([&] { return among(ranks, std::move(own)); });
}

c10::intrusive_ptr<c10d::Backend> ProcessGroup::shrink(
    const std::vector<std::int64_t>& ranks_to_exclude, int,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  std::vector<int> ranks;
  for (int rank = 0; rank < getSize(); ++rank)
    if (std::ranges::find(ranks_to_exclude, rank) == ranks_to_exclude.end()) ranks.push_back(rank);
  return split(nullptr, ranks, options ? options : getBackendOptions());
}

c10::intrusive_ptr<ProcessGroup> ProcessGroup::among(const std::vector<int>& ranks,
                                                     c10::intrusive_ptr<Options> options) const {
  const auto own = membership();
  const std::vector<std::string> all = own->group.members();
  std::vector<std::string> members;
  for (const int rank : ranks) members.push_back(all.at(static_cast<std::size_t>(rank)));
  auto made = c10::make_intrusive<ProcessGroup>(0, 0, options);
  made->enter(make(own->world, std::move(members), *options, options->timeout));
  return made;
}

std::shared_ptr<const ProcessGroup::Membership> ProcessGroup::make(std::shared_ptr<World> world,
                                                                   std::vector<std::string> members,
                                                                   const Options& options,
                                                                   std::chrono::milliseconds timeout) {
  collectives::GroupOptions group;
  if (!members.empty())
    group.name = options.group_name;  // the default group has the name of that of C++ programs
  group.members = std::move(members);
  group.timeout = options.timeout;
  group.checks = collectives::Checks::relaxed;
  Group made = Group::create(world->job->agent(), std::move(group)).get(timeout);
  return std::make_shared<const Membership>(std::move(made), std::move(world));
}

void ProcessGroup::enter(std::shared_ptr<const Membership> membership) {
  rank_ = membership->group.rank();
  size_ = membership->group.size();
  membership_.store(std::move(membership));
}

std::shared_ptr<const ProcessGroup::Membership> ProcessGroup::membership() const {
  auto membership = membership_.load();
  TORCH_CHECK(membership != nullptr, "weft: the process group has no members: ",
              store_ ? "call reconfigure()" : "it has been shut down");
  return membership;
}

ProcessGroup::WorkPtr ProcessGroup::reconfigure(const c10d::ReconfigureOptions& options) {
  TORCH_CHECK(store_, "weft: reconfigure(): the process group was made without enable_reconfigure=True");
  std::vector<std::string> handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); }, options.handles);
  if (std::holds_alternative<std::unordered_set<std::string>>(options.handles)) std::ranges::sort(handles);
  const auto own = std::ranges::find(handles, handle_);
  TORCH_CHECK(own != handles.end(), "weft: reconfigure(): the handle '", handle_,
              "' of this process is not among those of the members");
  coalesced_.reset();
  abort();
  shutdown();
  const auto timeout = options.timeout.value_or(options_->timeout);
  c10d::PrefixStore store("reconfigure/" + std::to_string(options.uuid), store_);
  with_torch_errors([&] {
    auto world = std::make_shared<World>(store, static_cast<int>(own - handles.begin()),
                                         static_cast<int>(handles.size()), timeout);
    enter(make(std::move(world), {}, *options_, timeout));
  });
  return start(c10d::OpType::BARRIER, "reconfigure", NoOptions{timeout}, {}, {},
               [](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.barrier(timeout, site);
               });
}

void ProcessGroup::abort() {
  if (const auto membership = membership_.load())
    membership->group.abort("torch.distributed has aborted the process group");
}

void ProcessGroup::shutdown() {
  std::shared_ptr<const Membership> last = membership_.exchange(nullptr);
  if (last == nullptr || !last->world->callbacks->running_here()) return without_gil([&] { last.reset(); });
  // The end of the world awaits this thread. Python awaits the other one before it ends.
  namespace py = pybind11;
  const py::gil_scoped_acquire gil;
  const py::cpp_function leave([last = std::move(last)]() mutable { without_gil([&] { last.reset(); }); });
  py::module_::import("threading").attr("Thread")(py::arg("target") = leave).attr("start")();
}

at::Tensor ProcessGroup::allocateTensor(long size, at::TensorOptions options) {
  return membership()->group.empty({size}, options);
}

// --- The collectives ---

template <class CallOptions, class Begin>
ProcessGroup::WorkPtr ProcessGroup::start(c10d::OpType operation, const char* name,
                                          const CallOptions& options, const Tensors& inputs, Lists outputs,
                                          Begin begin) {
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  const auto membership = this->membership();
  const std::string title = options_->backend + ":" + name;
  auto work = c10::make_intrusive<Work>(membership->world->callbacks, getRank(), operation, title.c_str(),
                                        inputs, std::move(outputs), ++sequence_, timeout);
  const Group group = options.asyncOp || coalesced_ ? membership->group : membership->group.inlined();
  const rpc::Site site = python_site();
  Future<int> source;
  try {
    source = as_source(begin(group, Timeout(timeout), site));
  } catch (const c10::Error& refused) {  // the other ranks must not wait for this one
    const std::size_t calls = operation == c10d::OpType::ALLGATHER_COALESCED ? inputs.size() : 1;
    if (const auto collective = collective_of(operation))
      for (std::size_t i = 0; i < calls; ++i)
        group.decline(*collective, at::kCPU,
                      rpc::Error(rpc::ErrorKind::invalid_argument, refused.what_without_backtrace()), site);
    coalesced_.reset();  // Python does not end the block
    throw;
  }
  if (coalesced_) {
    const rpc::SharedFuture<int> shared(std::move(source));
    coalesced_->push_back(shared.future());
    source = shared.future();
  }
  Work::follow(work, std::move(source));
  return work;
}

void ProcessGroup::startCoalescing() { coalesced_.emplace(); }

ProcessGroup::WorkPtr ProcessGroup::endCoalescing() {
  TORCH_CHECK(coalesced_, "weft: endCoalescing() without startCoalescing()");
  std::vector<Future<int>> started = *std::exchange(coalesced_, std::nullopt);
  return start(c10d::OpType::COALESCED, "coalesced", NoOptions{}, {}, {},
               [&](const Group&, Timeout, const rpc::Site&) {
                 return rpc::when_all(std::move(started)).then([](Result<std::vector<int>>&& all) {
                   return all.ok() ? Result<int>(-1) : Result<int>(all.error());
                 });
               });
}

ProcessGroup::WorkPtr ProcessGroup::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start(c10d::OpType::BROADCAST, "broadcast", options, tensors, {tensors},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.broadcast(only(tensors, "broadcast"), static_cast<int>(options.rootRank),
                                        timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return start(c10d::OpType::ALLREDUCE, "all_reduce", options, tensors, {tensors},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.all_reduce(only(tensors, "all_reduce"), reduction(options.reduceOp), timeout,
                                         site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::allreduce_coalesced(Tensors& tensors,
                                                        const c10d::AllreduceCoalescedOptions& options) {
  return start(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce", options, tensors, {tensors},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.all_reduce(tensors, reduction(options.reduceOp), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return start(c10d::OpType::REDUCE, "reduce", options, tensors, {tensors},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.reduce(only(tensors, "reduce"), static_cast<int>(options.rootRank),
                                     reduction(options.reduceOp), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::allgather(Lists& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) {
  return start(c10d::OpType::ALLGATHER, "all_gather", options, inputs, outputs,
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.all_gather_v(list_of(outputs, "all_gather"), only(inputs, "all_gather"),
                                           timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::all_gather_single(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& options) {
  return start(c10d::OpType::_ALLGATHER_BASE, "_all_gather_base", options, {input}, {{output}},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.all_gather(output, input, timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  return start(c10d::OpType::ALLGATHER_COALESCED, "all_gather", options, inputs, outputs,
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 for (const Tensors& of_rank : outputs)
                   TORCH_CHECK(of_rank.size() == inputs.size(), "weft: all_gather: ", of_rank.size(),
                               " outputs of a rank, expected ", inputs.size());
                 std::vector<Future<void>> gathers;
                 for (std::size_t i = 0; i < inputs.size(); ++i) {
                   Tensors parts;
                   for (const Tensors& of_rank : outputs) parts.push_back(of_rank.at(i));
                   gathers.push_back(group.all_gather_v(std::move(parts), inputs[i], timeout, site));
                 }
                 return rpc::when_all(std::move(gathers));
               });
}

ProcessGroup::WorkPtr ProcessGroup::all_gather_single_coalesced(Tensors& outputs, Tensors& inputs,
                                                                const c10d::AllgatherOptions& options) {
  return start(c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED, "all_gather", options, inputs, {outputs},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.all_gather(outputs, inputs, timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::gather(Lists& outputs, Tensors& inputs,
                                           const c10d::GatherOptions& options) {
  return start(c10d::OpType::GATHER, "gather", options, inputs, outputs,
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.gather(list_of(outputs, "gather"), only(inputs, "gather"),
                                     static_cast<int>(options.rootRank), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::gather_single(at::Tensor& output, at::Tensor& input,
                                                  const c10d::GatherOptions& options) {
  const bool is_root = options.rootRank == getRank();
  return start(c10d::OpType::GATHER, "gather", options, {input}, {{output}},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.gather(is_root ? parts_of(output, {}, getSize()) : Tensors(), input,
                                     static_cast<int>(options.rootRank), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::scatter(Tensors& outputs, Lists& inputs,
                                            const c10d::ScatterOptions& options) {
  const Tensors parts = inputs.empty() ? Tensors() : inputs.front();
  return start(c10d::OpType::SCATTER, "scatter", options, parts, {outputs},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.scatter(only(outputs, "scatter"), list_of(inputs, "scatter"),
                                      static_cast<int>(options.rootRank), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter(Tensors& outputs, Lists& inputs,
                                                   const c10d::ReduceScatterOptions& options) {
  const Tensors parts = inputs.empty() ? Tensors() : inputs.front();
  return start(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", options, parts, {outputs},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.reduce_scatter_v(only(outputs, "reduce_scatter"),
                                               list_of(inputs, "reduce_scatter"), reduction(options.reduceOp),
                                               timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter_single(at::Tensor& output, at::Tensor& input,
                                                          const c10d::ReduceScatterOptions& options) {
  return start(c10d::OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base", options, {input}, {{output}},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.reduce_scatter(output, input, reduction(options.reduceOp), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::reduce_scatter_single_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  return start(c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "reduce_scatter", options, inputs, {outputs},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.reduce_scatter(outputs, inputs, reduction(options.reduceOp), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::all_to_all_single(at::Tensor& output, at::Tensor& input,
                                                      std::vector<std::int64_t>& output_sizes,
                                                      std::vector<std::int64_t>& input_sizes,
                                                      const c10d::AllToAllOptions& options) {
  return start(c10d::OpType::ALLTOALL_BASE, "all_to_all", options, {input}, {{output}},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 // Always the form with sizes: a rank that states equal sizes meets one that states none.
                 return group.all_to_all_v(parts_of(output, output_sizes, getSize()),
                                           parts_of(input, input_sizes, getSize()), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::alltoall(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllToAllOptions& options) {
  return start(c10d::OpType::ALLTOALL, "all_to_all", options, inputs, {outputs},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.all_to_all_v(outputs, inputs, timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::send(Tensors& tensors, int to, int tag) {
  return start(c10d::OpType::SEND, "send", NoOptions{}, tensors, {},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.send(only(tensors, "send"), to, static_cast<std::uint64_t>(tag), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  return start(c10d::OpType::RECV, "recv", NoOptions{}, tensors, {tensors},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group
                     .recv(only(tensors, "recv"), from, static_cast<std::uint64_t>(tag), timeout, site)
                     .then([from](Result<void>&& done) {
                       return done.ok() ? Result<int>(from) : Result<int>(done.error());
                     });
               });
}

ProcessGroup::WorkPtr ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  return start(c10d::OpType::RECVANYSOURCE, "recvAnySource", NoOptions{}, tensors, {tensors},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.recv_any(only(tensors, "recv"), static_cast<std::uint64_t>(tag), timeout, site);
               });
}

ProcessGroup::WorkPtr ProcessGroup::barrier(const c10d::BarrierOptions& options) {
  return start(c10d::OpType::BARRIER, "barrier", options, {}, {},
               [&](const Group& group, Timeout timeout, const rpc::Site& site) {
                 return group.barrier(timeout, site);
               });
}

void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  const std::vector<int> missing =
      with_torch_errors([&] { return membership()->group.monitored_barrier(timeout, python_site()).get(); });
  if (missing.empty()) return;
  TORCH_CHECK(getRank() == 0, "Rank ", getRank(),
              " successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
              "rank 0. Please check rank 0 logs for faulty rank.");
  TORCH_CHECK(timeout.count() > 0, "Rank 0 timed out in monitoredBarrier after ", timeout.count(), " ms.");
  const bool all = wait_all_ranks && missing.size() > 1;
  TORCH_CHECK(false, "[Rank 0]: Rank", all ? "s " : " ",
              all ? c10::Join(", ", missing) : std::to_string(missing.front()),
              " failed to pass monitoredBarrier in ", timeout.count(), " ms");
}

void bind_process_group(pybind11::module_& module) {
  namespace py = pybind11;
  py::module_::import("torch.distributed");  // registers c10d::Backend and c10d::Store
  py::class_<ProcessGroup, c10d::Backend, c10::intrusive_ptr<ProcessGroup>>(module, "ProcessGroup")
      .def(py::init([](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                       std::chrono::milliseconds timeout, const std::string& name,
                       const std::vector<std::uint64_t>& global_ranks, const ProcessGroup* parent,
                       const std::string& backend, bool enable_reconfigure) {
             auto options = c10::make_intrusive<ProcessGroup::Options>(backend, timeout);
             options->group_name = name;
             options->global_ranks_in_group = global_ranks;
             options->enable_reconfigure = enable_reconfigure;
             return ProcessGroup::create(store, rank, size, std::move(options), parent);
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
           py::arg("global_ranks"), py::arg("parent"), py::arg("backend") = "weft",
           py::arg("enable_reconfigure") = false, py::call_guard<py::gil_scoped_release>());
}

}  // namespace weft::python
