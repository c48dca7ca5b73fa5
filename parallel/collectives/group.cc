#include <weft/parallel/collectives/group.h>

#include <weft/parallel/collectives/internal/group/group_core.h>
#include <weft/parallel/collectives/internal/group/preparation.h>
#include <weft/parallel/collectives/internal/sparse_gather.h>
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace weft::collectives {
namespace {

std::span<const at::Tensor> one(const at::Tensor& tensor) { return {&tensor, 1}; }

// The messages of sparse reductions have the tags from here on, which follow the numbers of their rounds.
constexpr std::uint64_t first_sparse_tag = std::uint64_t{1} << 63;

// Whether the call has lists of tensors that a group with relaxed checks divides by dtype.
bool is_divided(const CollectiveCall& call) {
  using Count = Description::Count;
  const Description& takes = description_of(call.operation);
  if (call.checks == Checks::strict || takes.outputs != Count::one_or_more || call.outputs.empty() ||
      (takes.inputs != Count::none && call.inputs.size() != call.outputs.size()))
    return false;
  return std::any_of(call.outputs.begin(), call.outputs.end(), [&](const at::Tensor& tensor) {
    return tensor.scalar_type() != call.outputs.front().scalar_type();
  });
}

// The parts of a tensor along its first dimension. sizes: empty for equal parts.
Tensors parts_of(const at::Tensor& tensor, const std::vector<std::int64_t>& sizes, std::int64_t ranks) {
  const std::int64_t rows = tensor.size(0);
  if (sizes.empty() && rows % ranks == 0) return tensor.tensor_split(ranks);
  if (std::ssize(sizes) == ranks && std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) == rows)
    return tensor.split_with_sizes(sizes);
  refuse("all_to_all_v: " + std::to_string(sizes.size()) + " splits of a first dimension of " +
         std::to_string(rows) + ", expected a size for each of the " + std::to_string(ranks) +
         " ranks, with that sum, or equal splits");
}

void check_sparse(const at::Tensor& tensor, ReduceOp op) {
  const auto unsupported = [](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::unsupported, "all_reduce: a sparse tensor " + why);
  };
  if (op.kind != ReduceOp::Kind::sum) unsupported("with " + op.name() + ", expected sum");
  if (!tensor.is_cpu())
    unsupported("on " + tensor.device().str() + ", expected one in host memory: call cpu()");
  if (tensor.scalar_type() == at::kBool) unsupported("of bool, expected numbers");
  if (tensor.sparse_dim() == 0) unsupported("without sparse dimensions, expected at least one");
}

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
  core_->failure().abort(core_->describe(rank()) + " aborted it: " + reason);
}

void Group::leave() const { (void)core_->failure().leave(); }

std::filesystem::path Group::write_flight(const std::filesystem::path& folder) const {
  core_->failure().note_awaited();
  return write_flight_dump(folder, core_->failure().flight());
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
rpc::Future<void> Group::run(CollectiveCall call) const {
  call.checks = core_->options().checks;
  if (is_divided(call)) return run_by_dtype(call);
  if (GroupDevices* const devices = core_->devices_for(call.first())) return devices->run(call);
  auto collective = rpc::capture([&] { return collective_of(*core_, core_->backend(), call); });
  if (!collective.ok()) return refused(call.operation, call.first(), call.site, collective.error());
  note_writes(call.outputs);
  return core_->collectives().start(std::move(collective).get(), inlined_);
}

rpc::Future<void> Group::run_by_dtype(const CollectiveCall& call) const {
  struct Part {
    at::ScalarType dtype;
    Tensors outputs, inputs;
  };
  std::vector<Part> parts;
  for (std::size_t i = 0; i < call.outputs.size(); ++i) {
    const at::ScalarType dtype = call.outputs[i].scalar_type();
    auto part =
        std::find_if(parts.begin(), parts.end(), [&](const Part& each) { return each.dtype == dtype; });
    if (part == parts.end()) part = parts.insert(parts.end(), {dtype, {}, {}});
    part->outputs.push_back(call.outputs[i]);
    if (!call.inputs.empty()) part->inputs.push_back(call.inputs[i]);
  }
  std::vector<rpc::Future<void>> all;
  for (const Part& part : parts) {
    CollectiveCall of_dtype = call;
    of_dtype.outputs = part.outputs;
    of_dtype.inputs = part.inputs;
    // If one fails, the ranks may have called different numbers of collectives.
    all.push_back(run(of_dtype).then([group = *this](rpc::Result<void>&& result) {
      if (!result.ok()) group.abort("a collective of tensors of several dtypes has failed");
      return std::move(result);
    }));
  }
  return rpc::when_all(std::move(all));
}

void Group::wait(rpc::Future<void> collective) const {
  const rpc::HandlerPool::Blocking may_block(core_->agent()->handlers());
  collective.get();
}

void Group::decline(Operation operation, c10::Device device, const rpc::Error& why, Site site) const {
  (void)core_->collectives().decline(operation, device.is_cpu() ? std::nullopt : std::optional(device.type()),
                                     site, std::make_exception_ptr(why));
}

rpc::Future<void> Group::refused(Operation operation, const at::Tensor* first, const Site& site,
                                 const std::exception_ptr& why) const {
  const bool is_on_host = core_->devices_for(first) == nullptr;
  return core_->collectives().decline(
      operation, is_on_host ? std::nullopt : std::optional(first->device().type()), site, why);
}

rpc::Future<void> Group::all_reduce(at::Tensor tensor, ReduceOp op, Timeout timeout, Site site) const {
  if (tensor.defined() && tensor.is_sparse()) return reduce_sparse(std::move(tensor), op, timeout, site);
  return run({Operation::all_reduce, one(tensor), {}, {}, op, timeout, site});
}

// The numbers of rows are a round of values, and the rows are messages. The program may start collectives
// meanwhile, and the order of a second collective relative to these would differ between ranks.
rpc::Future<void> Group::reduce_sparse(at::Tensor tensor, ReduceOp op, Timeout timeout,
                                       const Site& site) const {
  const at::NoGradGuard no_grad;
  std::shared_ptr<SparseGather> gather;
  const auto refusal = rpc::capture([&] {
    check_sparse(tensor, op);
    gather =
        std::make_shared<SparseGather>(*this, tensor.sizes(), tensor._values().options(), tensor.detach());
    note_writes(one(tensor));
  });
  const std::string call = "all_reduce(" + op.name() + ", sparse " + type_of(tensor) + ")";
  const auto promise = std::make_shared<rpc::Promise<void>>();
  core_->failure().abort_on_cancel(*promise, call + " at " + site.text());
  auto future = promise->future();
  const auto take = [gather, tensor, promise](rpc::Result<void>&& received) {
    promise->complete(rpc::capture([&] {
      const at::NoGradGuard no_grad;
      std::move(received).get();
      tensor.copy_(gather->sum());
    }));
  };
  const std::uint64_t round = core_->values().reserve_rounds(1);
  give_or_refuse(round, call, refusal, refusal.ok() ? rpc::pack(gather->count()) : rpc::Buffer{}, true,
                 timeout, site)
      .then([gather, promise, take, round, timeout, site](rpc::Result<Objects>&& all) {
        auto rows = rpc::capture([&] {
          const Objects by_rank = std::move(all).get();
          const at::Tensor counts = at::empty({std::ssize(by_rank), 2}, at::kLong);
          for (std::int64_t rank = 0; rank < counts.size(0); ++rank)
            counts[rank].copy_(
                at::tensor(rpc::unpack<std::vector<std::int64_t>>(by_rank[static_cast<std::size_t>(rank)])));
          return gather->send_rows(counts, first_sparse_tag + round, timeout, site);
        });
        if (!rows.ok()) return promise->fail(rows.error());
        std::move(rows).get().then(take);
      });
  return future;
}

rpc::Future<void> Group::all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Timeout timeout,
                                    Site site) const {
  return run({Operation::all_reduce, tensors, {}, {}, op, timeout, site});
}

rpc::Future<void> Group::reduce(at::Tensor tensor, int root, ReduceOp op, Timeout timeout, Site site) const {
  return run({Operation::reduce, one(tensor), {}, root, op, timeout, site});
}

rpc::Future<void> Group::broadcast(at::Tensor tensor, int root, Timeout timeout, Site site) const {
  return run({Operation::broadcast, one(tensor), {}, root, {}, timeout, site});
}

rpc::Future<void> Group::broadcast(std::vector<at::Tensor> tensors, int root, Timeout timeout,
                                   Site site) const {
  return run({Operation::broadcast, tensors, {}, root, {}, timeout, site});
}

rpc::Future<void> Group::all_gather(at::Tensor output, at::Tensor input, Timeout timeout, Site site) const {
  return run({Operation::all_gather, one(output), one(input), {}, {}, timeout, site});
}

rpc::Future<void> Group::all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                    Timeout timeout, Site site) const {
  return run({Operation::all_gather, outputs, inputs, {}, {}, timeout, site});
}

rpc::Future<void> Group::all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Timeout timeout,
                                      Site site) const {
  return run({Operation::all_gather_v, outputs, one(input), {}, {}, timeout, site});
}

rpc::Future<void> Group::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, Timeout timeout,
                                        Site site) const {
  return run({Operation::reduce_scatter, one(output), one(input), {}, op, timeout, site});
}

rpc::Future<void> Group::reduce_scatter(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                        ReduceOp op, Timeout timeout, Site site) const {
  return run({Operation::reduce_scatter, outputs, inputs, {}, op, timeout, site});
}

rpc::Future<void> Group::reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op,
                                          Timeout timeout, Site site) const {
  return run({Operation::reduce_scatter_v, one(output), inputs, {}, op, timeout, site});
}

rpc::Future<void> Group::all_to_all(at::Tensor output, at::Tensor input, Timeout timeout, Site site) const {
  return run({Operation::all_to_all, one(output), one(input), {}, {}, timeout, site});
}

rpc::Future<void> Group::all_to_all_v(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                      Timeout timeout, Site site) const {
  return run({Operation::all_to_all_v, outputs, inputs, {}, {}, timeout, site});
}

rpc::Future<void> Group::all_to_all_v(at::Tensor output, const std::vector<std::int64_t>& output_sizes,
                                      at::Tensor input, const std::vector<std::int64_t>& input_sizes,
                                      Timeout timeout, Site site) const {
  Tensors outputs, inputs;
  const auto split = rpc::capture([&] {
    outputs = parts_of(output, output_sizes, size());
    inputs = parts_of(input, input_sizes, size());
  });
  if (!split.ok()) return refused(Operation::all_to_all_v, &input, site, split.error());
  return all_to_all_v(std::move(outputs), std::move(inputs), timeout, site);
}

rpc::Future<void> Group::gather(std::vector<at::Tensor> outputs, at::Tensor input, int root, Timeout timeout,
                                Site site) const {
  return run({Operation::gather, outputs, one(input), root, {}, timeout, site});
}

rpc::Future<void> Group::scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root, Timeout timeout,
                                 Site site) const {
  return run({Operation::scatter, one(output), inputs, root, {}, timeout, site});
}

rpc::Future<void> Group::barrier(Timeout timeout, Site site) const {
  return run({Operation::barrier, {}, {}, {}, {}, timeout, site});
}

rpc::Future<void> Group::collective(Operation operation, Tensors outputs, Tensors inputs,
                                    std::optional<int> root, std::optional<ReduceOp> op, Timeout timeout,
                                    Site site) const {
  const Description& takes = description_of(operation);
  const CollectiveCall call{operation, outputs, inputs, root, op, timeout, site};
  if (takes.has_root != root.has_value() || takes.reduces != op.has_value())
    return refused(operation, call.first(), site,
                   std::make_exception_ptr(rpc::Error(
                       rpc::ErrorKind::invalid_argument,
                       std::string(name_of(operation)) + ": expected " + (takes.has_root ? "a" : "no") +
                           " root and " + (takes.reduces ? "a known" : "no") + " reduction")));
  const bool is_sparse = operation == Operation::all_reduce && outputs.size() == 1 &&
                         outputs.front().defined() && outputs.front().is_sparse();
  return is_sparse ? reduce_sparse(std::move(outputs.front()), *op, timeout, site) : run(call);
}

rpc::Future<std::vector<int>> Group::monitored_barrier(Timeout timeout, Site site) const {
  auto limit = timeout.value_or(options().timeout);
  if (rank() != 0) limit = std::max(limit, options().timeout);
  return core_->values()
      .give({.monitored = true}, "monitored_barrier()", site, {}, true, limit)
      .then([](rpc::Result<Objects>&& missing) {
        return rpc::capture([&] { return rpc::unpack<std::vector<int>>(std::move(missing).get().at(0)); });
      });
}

rpc::Future<void> Group::launch(const std::string& name, LaunchFunction begin, Timeout timeout,
                                Site site) const {
  if (name.empty())
    return rpc::Future<void>::made(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::invalid_argument, "launch: the name is empty: give each launch a name")));
  const auto promise = std::make_shared<rpc::Promise<void>>();
  promise->on_cancel([weak = std::weak_ptr(core_), name] {
    if (const auto core = weak.lock())
      core->failure().abort("rank " + std::to_string(core->rank()) + " aborted launch(" + name + ")");
  });
  auto future = promise->future();
  core_->values().launch(
      name,
      [promise, begin = std::move(begin), state = at::ThreadLocalState()](rpc::Result<void> ready) mutable {
        if (!ready.ok()) return promise->fail(ready.error());
        const at::ThreadLocalStateGuard as_called(state);
        const auto begun = rpc::capture([&] {
          begin().then([promise](rpc::Result<void>&& result) { promise->complete(std::move(result)); });
        });
        if (!begun.ok() && *promise) promise->fail(begun.error());
      },
      site, timeout);
  return future;
}

// --- Messages between two ranks, and objects through rank 0 ---

rpc::Future<void> Group::send(at::Tensor tensor, int to, std::uint64_t tag, Timeout timeout,
                              Site site) const {
  if (GroupDevices* const devices = core_->devices_for(&tensor))
    return devices->exchange({{PointToPoint::Kind::send, tensor, to, tag}}, timeout, site);
  auto message = rpc::capture([&] {
    check_tensor("send", tensor);
    expect_rank(*core_, to);
    return GroupMessage{tag, type_of(tensor), site, bytes_of(flat(tensor)), timeout};
  });
  if (!message.ok()) {
    core_->messages().decline(PointToPoint::Kind::send, to, tag, site, message.error());
    return rpc::Future<void>::made(rpc::Result<void>(message.error()));
  }
  return core_->messages().send(to, std::move(message).get());
}

rpc::Future<int> Group::receive(at::Tensor tensor, std::optional<int> from, std::uint64_t tag,
                                Timeout timeout, const Site& site) const {
  auto output = rpc::capture([&] {
    check_tensor("recv", tensor);
    if (core_->devices_for(&tensor) != nullptr)
      throw rpc::Error(rpc::ErrorKind::unsupported, "recv_any: a tensor on " + tensor.device().str() +
                                                        ": give one of the host's memory, or use recv()");
    if (from) expect_rank(*core_, *from);
    return Output({&tensor, 1});
  });
  if (!output.ok()) {
    core_->messages().decline(PointToPoint::Kind::recv, from, tag, site, output.error());
    return rpc::Future<int>::made(rpc::Result<int>(output.error()));
  }
  note_writes({&tensor, 1});
  const Output memory = std::move(output).get();
  return core_->messages()
      .receive(from, {tag, type_of(tensor), site, bytes_of(memory.memory()), timeout,
                      options().checks == Checks::relaxed})
      .then([memory](rpc::Result<int>&& sender) {
        if (sender.ok()) memory.write_back();
        return std::move(sender);
      });
}

rpc::Future<void> Group::recv(at::Tensor tensor, int from, std::uint64_t tag, Timeout timeout,
                              Site site) const {
  if (GroupDevices* const devices = core_->devices_for(&tensor))
    return devices->exchange({{PointToPoint::Kind::recv, tensor, from, tag}}, timeout, site);
  return receive(std::move(tensor), from, tag, timeout, site).then([](rpc::Result<int>&& sender) {
    return sender.ok() ? rpc::Result<void>{} : rpc::Result<void>(sender.error());
  });
}

rpc::Future<at::Tensor> Group::recv_tensor(int from, std::uint64_t tag, Timeout timeout, Site site) const {
  const auto refusal = rpc::capture([&] { expect_rank(*core_, from); });
  if (!refusal.ok()) return rpc::Future<at::Tensor>::made(rpc::Result<at::Tensor>(refusal.error()));
  return core_->messages()
      .receive_tensor(from, {tag, {}, site, {}, timeout})
      .then([](rpc::Result<Mailbox::Received>&& received) {
        return rpc::capture([&] {
          Mailbox::Received message = std::move(received).get();
          const auto type = tensor_type_of(message.type, message.bytes.size());
          at::Tensor tensor = at::empty(type->shape, type->dtype);
          if (!message.bytes.empty())
            std::memcpy(data_of(tensor), message.bytes.data(), message.bytes.size());
          return tensor;
        });
      });
}

rpc::Future<int> Group::recv_any(at::Tensor tensor, std::uint64_t tag, Timeout timeout, Site site) const {
  return receive(std::move(tensor), std::nullopt, tag, timeout, site);
}

rpc::Future<void> Group::batch(std::vector<PointToPoint> messages, Timeout timeout, Site site) const {
  if (GroupDevices* const devices = messages.empty() ? nullptr : core_->devices_for(&messages.front().tensor))
    return devices->exchange(std::move(messages), timeout, site);
  std::vector<rpc::Future<void>> all;
  for (PointToPoint& each : messages) {
    const bool sends = each.kind == PointToPoint::Kind::send;
    all.push_back(sends ? send(std::move(each.tensor), each.peer, each.tag, timeout, site)
                        : recv(std::move(each.tensor), each.peer, each.tag, timeout, site));
  }
  return rpc::when_all(std::move(all));
}

void Group::expect_one_a_rank(std::size_t objects, int ranks) {
  if (objects != static_cast<std::size_t>(ranks))
    refuse(std::to_string(objects) + " objects, expected " + std::to_string(ranks) +
           ": give one for each rank");
}

rpc::Future<void> Group::send_packed(const std::string& type, rpc::Buffer object, int to, std::uint64_t tag,
                                     Timeout timeout, const Site& site) const {
  const auto refusal = rpc::capture([&] { expect_rank(*core_, to); });
  if (!refusal.ok()) return rpc::Future<void>::made(rpc::Result<void>(refusal.error()));
  return core_->messages().send(to, GroupMessage{tag, type, site, std::move(object), timeout});
}

rpc::Future<rpc::Buffer> Group::receive_packed(const std::string& type, int from, std::uint64_t tag,
                                               Timeout timeout, const Site& site) const {
  const auto refusal = rpc::capture([&] { expect_rank(*core_, from); });
  if (!refusal.ok()) return rpc::Future<rpc::Buffer>::made(rpc::Result<rpc::Buffer>(refusal.error()));
  return core_->messages().receive_any_size(from, {tag, type, site, {}, timeout});
}

rpc::Future<Group::Objects> Group::give(const std::string& meaning, std::optional<int> root,
                                        rpc::Buffer object, bool wants_all, Timeout timeout,
                                        const Site& site) const {
  const auto refusal = rpc::capture([&] {
    if (root) expect_rank(*core_, *root);
  });
  return give_or_refuse(core_->values().reserve_rounds(1),
                        meaning + (root ? ", root " + std::to_string(*root) : "") + ")", refusal,
                        std::move(object), wants_all, timeout, site);
}

rpc::Future<Group::Objects> Group::give_or_refuse(std::uint64_t round, const std::string& call,
                                                  const rpc::Result<void>& refusal, rpc::Buffer object,
                                                  bool wants_all, Timeout timeout, const Site& site) const {
  if (refusal.ok()) return core_->values().give({round}, call, site, std::move(object), wants_all, timeout);
  // The other ranks must not wait for this rank.
  (void)core_->values().give({round}, call + ", refused", site, {}, false, timeout);
  return rpc::Future<Objects>::made(rpc::Result<Objects>(refusal.error()));
}

}  // namespace weft::collectives
