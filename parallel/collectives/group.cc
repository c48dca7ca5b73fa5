#include <weft/parallel/collectives/group.h>

#include <weft/parallel/collectives/preparation.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/endpoint/agent_core.h>

namespace weft::collectives {
namespace {

std::span<const at::Tensor> one(const at::Tensor& tensor) { return {&tensor, 1}; }

}  // namespace

const std::string& Group::name() const { return core_->name(); }
const GroupOptions& Group::options() const { return core_->options(); }
int Group::rank() const { return core_->rank(); }
int Group::size() const { return core_->size(); }
std::vector<std::string> Group::members() const {
  std::vector<std::string> names;
  for (const rpc::AgentId& member : core_->members()) names.push_back(member.name);
  return names;
}
Group Group::inlined() const {
  Group group = *this;
  group.inlined_ = true;
  return group;
}
const std::shared_ptr<rpc::AgentCore>& Group::agent() const { return core_->agent(); }

void Group::abort(const std::string& reason) const {
  core_->abort("rank " + std::to_string(rank()) + " (" + members()[static_cast<std::size_t>(rank())] +
               ") aborted it: " + reason);
}

std::filesystem::path Group::write_flight(const std::filesystem::path& folder) const {
  core_->note_awaited();
  return write_flight_dump(folder, core_->flight());
}

at::Tensor Group::empty(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  return empty_in(&core_->backend(), sizes, options);
}

GroupBackend Group::backend() const { return core_->kind(); }
rpc::Future<void> Group::prepare(c10::Device device, Timeout timeout, Site site) const {
  if (device.is_cpu()) return rpc::Future<void>::made(rpc::Result<void>{});
  return core_->devices().prepare(device, timeout, site);
}

// --- Collectives ---

// Errors of arguments fail the future, as all other errors do, and reach the other ranks.
rpc::Future<void> Group::run(const CollectiveCall& call) const {
  if (GroupDevices* const devices = core_->devices_for(call.first())) return devices->run(call);
  auto collective = rpc::capture([&] { return collective_of(*core_, call); });
  if (!collective.ok()) return core_->decline(call.operation, std::nullopt, call.site, collective.error());
  note_writes(call.outputs);
  return core_->start(std::move(collective).get(), inlined_);
}

void Group::wait(rpc::Future<void> collective) const {
  const rpc::HandlerPool::Blocking may_block(core_->agent()->handlers());
  collective.get();
}

void Group::decline(Operation operation, c10::Device device, const rpc::Error& why, Site site) const {
  (void)core_->decline(operation, device.is_cpu() ? std::nullopt : std::optional(device.type()), site,
                       std::make_exception_ptr(why));
}

rpc::Future<void> Group::all_reduce(at::Tensor tensor, ReduceOp op, Timeout timeout, Site site) const {
  return run({.operation = Operation::all_reduce,
              .outputs = one(tensor),
              .reduction = op,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Timeout timeout,
                                    Site site) const {
  return run({.operation = Operation::all_reduce,
              .outputs = tensors,
              .reduction = op,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::reduce(at::Tensor tensor, int root, ReduceOp op, Timeout timeout, Site site) const {
  return run({.operation = Operation::reduce,
              .outputs = one(tensor),
              .root = root,
              .reduction = op,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::broadcast(at::Tensor tensor, int root, Timeout timeout, Site site) const {
  return run({.operation = Operation::broadcast,
              .outputs = one(tensor),
              .root = root,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::broadcast(std::vector<at::Tensor> tensors, int root, Timeout timeout,
                                   Site site) const {
  return run({.operation = Operation::broadcast,
              .outputs = tensors,
              .root = root,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::all_gather(at::Tensor output, at::Tensor input, Timeout timeout, Site site) const {
  return run({.operation = Operation::all_gather,
              .outputs = one(output),
              .inputs = one(input),
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                    Timeout timeout, Site site) const {
  return run({.operation = Operation::all_gather,
              .outputs = outputs,
              .inputs = inputs,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Timeout timeout,
                                      Site site) const {
  return run({.operation = Operation::all_gather_v,
              .outputs = outputs,
              .inputs = one(input),
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, Timeout timeout,
                                        Site site) const {
  return run({.operation = Operation::reduce_scatter,
              .outputs = one(output),
              .inputs = one(input),
              .reduction = op,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::reduce_scatter(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                        ReduceOp op, Timeout timeout, Site site) const {
  return run({.operation = Operation::reduce_scatter,
              .outputs = outputs,
              .inputs = inputs,
              .reduction = op,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op,
                                          Timeout timeout, Site site) const {
  return run({.operation = Operation::reduce_scatter_v,
              .outputs = one(output),
              .inputs = inputs,
              .reduction = op,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::all_to_all(at::Tensor output, at::Tensor input, Timeout timeout, Site site) const {
  return run({.operation = Operation::all_to_all,
              .outputs = one(output),
              .inputs = one(input),
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::all_to_all_v(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                      Timeout timeout, Site site) const {
  return run({.operation = Operation::all_to_all_v,
              .outputs = outputs,
              .inputs = inputs,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::gather(std::vector<at::Tensor> outputs, at::Tensor input, int root, Timeout timeout,
                                Site site) const {
  return run({.operation = Operation::gather,
              .outputs = outputs,
              .inputs = one(input),
              .root = root,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root, Timeout timeout,
                                 Site site) const {
  return run({.operation = Operation::scatter,
              .outputs = one(output),
              .inputs = inputs,
              .root = root,
              .timeout = timeout,
              .site = site});
}

rpc::Future<void> Group::barrier(Timeout timeout, Site site) const {
  return run({.operation = Operation::barrier, .timeout = timeout, .site = site});
}

}  // namespace weft::collectives
