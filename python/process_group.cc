#include "process_group.h"

#include "gil.h"
#include "work.h"
#include "world.h"

#include <weft/rpc/core/shared_future.h>
#include <weft/rpc/core/when_all.h>

#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

namespace weft::python {

using collectives::Group;
using rpc::Future;

namespace {

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "weft: ", tensors.size(), " tensors in a message, expected one");
  return tensors.front();
}

}  // namespace

// --- The group ---

c10::intrusive_ptr<ProcessGroup> ProcessGroup::create(const StorePtr& store, int rank, int size,
                                                      OptionsPtr options) {
  const auto timeout = options->timeout;
  if (options->enable_reconfigure)
    return c10::make_intrusive<ProcessGroup>(rank, size, std::move(options), store);
  auto made = c10::make_intrusive<ProcessGroup>(rank, size, std::move(options));
  with_torch_errors([&] {
    auto world = std::make_shared<World>(store.get(), rank, size);
    world->job->join(timeout).get();
    made->membership_ = made->make(std::move(world), {}, timeout);
  });
  return made;
}

ProcessGroup::BackendPtr ProcessGroup::split(const StorePtr&, const std::vector<int>& ranks,
                                             const OptionsPtr& options) {
  if (std::ranges::find(ranks, getRank()) == ranks.end()) return nullptr;
  const auto own = membership();
  const std::vector<std::string> all = own->group->members();
  std::vector<std::string> members;
  for (const int rank : ranks) members.push_back(all.at(static_cast<std::size_t>(rank)));
  auto made = c10::make_intrusive<ProcessGroup>(0, 0, options->clone());
  with_torch_errors(
      [&] { made->membership_ = made->make(own->world, std::move(members), options->timeout); });
  return made;
}

ProcessGroup::BackendPtr ProcessGroup::shrink(const std::vector<std::int64_t>& ranks_to_exclude, int,
                                              const OptionsPtr& options) {
  std::vector<int> ranks;
  for (int rank = 0; rank < getSize(); ++rank)
    if (std::ranges::find(ranks_to_exclude, rank) == ranks_to_exclude.end()) ranks.push_back(rank);
  return split(nullptr, ranks, options ? options : options_);
}

ProcessGroup::MembershipPtr ProcessGroup::make(std::shared_ptr<World> world, std::vector<std::string> members,
                                               std::chrono::milliseconds timeout) {
  collectives::GroupOptions group;
  if (!members.empty())
    group.name = options_->group_name;  // the default group has the name of that of C++ programs
  group.members = std::move(members);
  group.timeout = options_->timeout;
  group.checks = collectives::Checks::relaxed;
  Group made = Group::create(world->job->agent(), std::move(group)).get(timeout);
  rank_ = made.rank();
  size_ = made.size();
  return std::make_shared<const Membership>(Membership{std::move(made), std::move(world)});
}

ProcessGroup::MembershipPtr ProcessGroup::membership() const {
  auto membership = membership_.load();
  TORCH_CHECK(membership != nullptr && membership->group, "weft: the process group has no members: ",
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
  // abort() and shutdown() on another thread remove it.
  auto entering = std::make_shared<const Membership>();
  membership_ = entering;
  const auto replace = [&](MembershipPtr next) {
    auto expected = std::exchange(entering, std::move(next));
    if (!membership_.compare_exchange_strong(expected, entering))
      throw rpc::Error(rpc::ErrorKind::aborted, "reconfigure(): abort() or shutdown() has ended it");
  };
  c10d::BarrierOptions first;
  first.timeout = options.timeout.value_or(options_->timeout);
  with_torch_errors([&] {
    const auto entered = rpc::capture([&] {
      c10d::PrefixStore store("reconfigure/" + std::to_string(options.uuid), store_);
      auto world = std::make_shared<World>(&store, static_cast<int>(own - handles.begin()),
                                           static_cast<int>(handles.size()));
      replace(std::make_shared<const Membership>(Membership{std::nullopt, world}));
      world->job->join(first.timeout).get();
      replace(make(world, {}, first.timeout));
    });
    if (entered.ok()) return;
    replace(nullptr);
    std::rethrow_exception(entered.error());
  });
  return barrier(first);
}

void ProcessGroup::abort() {
  const MembershipPtr last = membership_.load();
  if (last == nullptr || !last->group) return shutdown();
  last->group->abort("torch.distributed has aborted the process group");
}

void ProcessGroup::shutdown() {
  MembershipPtr last = membership_.exchange(nullptr);
  if (last == nullptr || last->world == nullptr) return;
  if (last->group) last->group->leave();
  if (!last->world->callbacks->running_here())
    return without_gil([&] {
      if (!last->group) last->world->job->agent().shut_down();  // ends reconfigure()
      last.reset();
    });
  // The end of the world awaits this thread. Python awaits the other one before it ends.
  namespace py = pybind11;
  const py::gil_scoped_acquire gil;
  const py::cpp_function leave([last = std::move(last)]() mutable { without_gil([&] { last.reset(); }); });
  py::module_::import("threading").attr("Thread")(py::arg("target") = leave).attr("start")();
}

at::Tensor ProcessGroup::allocateTensor(long size, at::TensorOptions options) {
  return membership()->group->empty({size}, options);
}

// --- The collectives ---

ProcessGroup::WorkPtr ProcessGroup::start(const Named& operation, std::chrono::milliseconds timeout,
                                          bool waits, const Tensors& inputs, Lists outputs, Begin begin) {
  timeout = timeout_of(timeout);
  const auto membership = this->membership();
  const std::string title = options_->backend + ":" + operation.name;
  auto work = c10::make_intrusive<Work>(membership->world->callbacks, getRank(), operation.type,
                                        title.c_str(), inputs, std::move(outputs), ++sequence_, timeout);
  const Group group = waits && !coalesced_ ? membership->group->inlined() : *membership->group;
  Future<void> done = begin({group, work, timeout, python_site()});
  if (coalesced_) {
    const rpc::SharedFuture<void> shared(std::move(done));
    coalesced_->push_back(shared.future());
    done = shared.future();
  }
  Work::follow(work, std::move(done));
  return work;
}

std::optional<collectives::ReduceOp> ProcessGroup::reduction_of(const c10d::ReduceOp& op) {
  using enum collectives::ReduceOp::Kind;
  using Torch = c10d::ReduceOp;
  // Both have the same order.
  static_assert(int{Torch::SUM} == int(sum) && int{Torch::AVG} == int(avg) &&
                int{Torch::PRODUCT} == int(product) && int{Torch::MIN} == int(min) &&
                int{Torch::MAX} == int(max) && int{Torch::BAND} == int(bit_and) &&
                int{Torch::BOR} == int(bit_or) && int{Torch::BXOR} == int(bit_xor));
  if (op.op_ < Torch::PREMUL_SUM) return collectives::ReduceOp{collectives::ReduceOp::Kind{op.op_}};
  const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
  if (op.op_ != Torch::PREMUL_SUM || factor == nullptr) return std::nullopt;
  return collectives::ReduceOp::premul_sum(
      factor->tensor_factor.defined() ? factor->tensor_factor.item<double>() : factor->double_factor);
}

ProcessGroup::Tensors ProcessGroup::joined(const Lists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

ProcessGroup::WorkPtr ProcessGroup::endCoalescing() {
  TORCH_CHECK(coalesced_, "weft: endCoalescing() without startCoalescing()");
  std::vector<Future<void>> started = *std::exchange(coalesced_, std::nullopt);
  return start({COALESCED, "coalesced"}, c10d::kUnsetTimeout, false, {}, {},
               [&](const Call&) { return rpc::when_all(std::move(started)); });
}

ProcessGroup::WorkPtr ProcessGroup::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  const Named named{ALLGATHER_COALESCED, "all_gather"};
  return start(named, options.timeout, !options.asyncOp, inputs, outputs, [&](const Call& call) {
    std::vector<Future<void>> gathers;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensors parts;  // weft refuses too few
      for (const Tensors& of_rank : outputs)
        if (of_rank.size() == inputs.size()) parts.push_back(of_rank[i]);
      gathers.push_back(call.group.all_gather_v(std::move(parts), inputs[i], call.timeout, call.site));
    }
    return rpc::when_all(std::move(gathers));
  });
}

ProcessGroup::WorkPtr ProcessGroup::all_to_all_single(Tensor& output, Tensor& input, Sizes& output_sizes,
                                                      Sizes& input_sizes,
                                                      const c10d::AllToAllOptions& options) {
  const Named named{ALLTOALL_BASE, "all_to_all"};
  return start(named, options.timeout, !options.asyncOp, {input}, {{output}}, [&](const Call& call) {
    // Always the form with sizes: a rank that states equal sizes meets one that states none.
    return call.group.all_to_all_v(output, output_sizes, input, input_sizes, call.timeout, call.site);
  });
}

ProcessGroup::WorkPtr ProcessGroup::send(Tensors& tensors, int to, int tag) {
  return start({SEND, "send"}, c10d::kUnsetTimeout, false, tensors, {}, [&](const Call& call) {
    return call.group.send(only(tensors), to, static_cast<std::uint64_t>(tag), call.timeout, call.site);
  });
}

ProcessGroup::WorkPtr ProcessGroup::recv(Tensors& tensors, int from, int tag) {
  return start({RECV, "recv"}, c10d::kUnsetTimeout, false, tensors, {tensors}, [&](const Call& call) {
    call.work->set_source(from);
    return call.group.recv(only(tensors), from, static_cast<std::uint64_t>(tag), call.timeout, call.site);
  });
}

ProcessGroup::WorkPtr ProcessGroup::recvAnysource(Tensors& tensors, int tag) {
  const Named named{RECVANYSOURCE, "recvAnySource"};
  return start(named, c10d::kUnsetTimeout, false, tensors, {tensors}, [&](const Call& call) {
    return call.group.recv_any(only(tensors), static_cast<std::uint64_t>(tag), call.timeout, call.site)
        .then([work = call.work](rpc::Result<int>&& from) {
          return rpc::capture([&] { work->set_source(std::move(from).get()); });
        });
  });
}

void ProcessGroup::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const auto timeout = timeout_of(options.timeout);
  const std::vector<int> missing =
      with_torch_errors([&] { return membership()->group->monitored_barrier(timeout, python_site()).get(); });
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

}  // namespace weft::python
