#include <weft/parallel/collectives/group.h>

#include <weft/parallel/collectives/preparation.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace weft::collectives {
namespace {

// Errors of the arguments are the future's, as all others.
template <class F>
rpc::Future<void> begin(const std::shared_ptr<GroupCore>& core, bool inlined, F prepare) {
  auto collective = rpc::capture([&] {
    const at::NoGradGuard no_grad;
    return prepare();
  });
  if (!collective.ok()) return rpc::Future<void>::made(rpc::Result<void>(collective.error()));
  return core->start(std::move(collective).get(), inlined);
}

// --- Tensors of an accelerator ---

struct Meaning {
  Operation operation;
  std::vector<std::vector<std::int64_t>> shapes;
  std::optional<int> root = {};
  std::optional<ReduceOp> reduction = {};
  Tensors outputs = {}, inputs = {};  // all_to_all_v
};

// The comparison of an all_to_all_v is an all_to_all of sizes: each rank learns how much the others send to
// it.
void compare_sizes(GroupCore& core, Collective& collective, const Tensors& outputs, const Tensors& inputs) {
  struct Sizes {
    std::vector<std::int64_t> sent, announced, expected;
  };
  const auto ranks = static_cast<std::size_t>(core.size());
  if (outputs.size() != ranks || inputs.size() != ranks) return;  // which is refused before it is compared
  const auto sizes = std::make_shared<Sizes>();
  for (const at::Tensor& input : inputs) sizes->sent.push_back(input.numel());
  for (const at::Tensor& output : outputs) sizes->expected.push_back(output.numel());
  sizes->announced.resize(ranks);
  collective.layout.operation = Operation::all_to_all;
  collective.layout.blocks = collective.layout.from = even_blocks(ranks, core.size());
  collective.memory = {.input = reinterpret_cast<const std::byte*>(sizes->sent.data()),
                       .output = reinterpret_cast<std::byte*>(sizes->announced.data()),
                       .item_size = sizeof(std::int64_t),
                       .keeper = sizes};
  collective.finish = [sizes, core = core.shared_from_this(), text = collective.text()] {
    for (std::size_t rank = 0; rank < sizes->expected.size(); ++rank) {
      if (sizes->announced[rank] == sizes->expected[rank]) continue;
      const auto name = [&](std::size_t one) {
        return "rank " + std::to_string(one) + " (" + core->members()[one].name + ")";
      };
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       text + ": " + name(rank) + " sends " + std::to_string(sizes->announced[rank]) +
                           " elements to " + name(static_cast<std::size_t>(core->rank())) +
                           ", which expects " + std::to_string(sizes->expected[rank]));
    }
  };
}

rpc::Future<void> on_device(GroupCore& core, const at::Tensor& first, Meaning meaning, Timeout timeout,
                            const std::source_location& site, const nccl::GroupDevices::Put& put) {
  Collective collective;
  collective.signature = {.operation = meaning.operation,
                          .shapes = std::move(meaning.shapes),
                          .dtype = first.scalar_type(),
                          .root = meaning.root,
                          .device = first.device().type()};
  if (meaning.reduction) collective.signature.reduction = meaning.reduction->kind;
  collective.site = site;
  collective.timeout = timeout;
  if (meaning.operation == Operation::all_to_all_v)
    compare_sizes(core, collective, meaning.outputs, meaning.inputs);
  return core.devices().run(first.device(), std::move(collective), put);
}

using Ranks = nccl::TensorCollectives;

// --- Tensors of the host ---

void expect_some(const Tensors& tensors) {
  if (tensors.empty()) refuse("a collective over no tensors");
}

// Both together.
Tensors expect_pairs(const Tensors& outputs, const Tensors& inputs) {
  expect_some(inputs);
  if (outputs.size() != inputs.size())
    refuse(std::to_string(outputs.size()) + " outputs of " + std::to_string(inputs.size()) + " inputs");
  Tensors all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  return all;
}

// The rank's part as a view: of a contiguous tensor, or a row of one that has a row a rank.
at::Tensor part_of(const at::Tensor& whole, int rank, int ranks) {
  const bool has_rows = whole.dim() > 1 && whole.size(0) == ranks && whole.select(0, 0).is_contiguous();
  if (!whole.is_contiguous() && !has_rows)
    refuse(
        "the tensors of a collective of several, of which each has parts, are contiguous, or their rows are");
  if (has_rows) return whole.detach().select(0, rank).view({-1});
  const std::int64_t part = whole.numel() / ranks;
  return whole.detach().view({-1}).narrow(0, rank * part, part);
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
void Group::abort(const std::string& reason) const {
  core_->abort("rank " + std::to_string(rank()) + " (" + members()[static_cast<std::size_t>(rank())] +
               ") aborted it: " + reason);
}

std::filesystem::path Group::write_flight(const std::filesystem::path& folder) const {
  core_->note_awaited();
  return write_flight_dump(folder, core_->flight());
}

at::Tensor Group::empty(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  return empty_in(core_->space(), sizes, options);
}

GroupBackend Group::backend() const { return core_->backend(); }
rpc::Future<void> Group::prepare(c10::Device device, Timeout timeout, Site site) const {
  if (device.is_cpu()) return rpc::Future<void>::made(rpc::Result<void>{});
  return core_->devices().prepare(device, timeout, site);
}

rpc::Future<void> Group::all_reduce(at::Tensor tensor, ReduceOp op, Timeout timeout, Site site) const {
  if (is_on_device(tensor))
    return on_device(*core_, tensor, {Operation::all_reduce, {shape_of(tensor)}, {}, op}, timeout, site,
                     [&](const Ranks& ranks, Timeout limit) { return ranks.all_reduce(tensor, op, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::all_reduce, tensor, timeout, site);
    all.set_reduction(op);
    all.signature().shapes = {shape_of(tensor)};
    all.layout().elements = count_of(tensor);
    // What has been changed before the ranks are known to agree is not the program's.
    const bool scratch = all.needs_scratch();
    Output output = scratch ? Output::copied({tensor}) : Output(tensor);
    output.gather();
    all.set_input(output.memory());
    all.set_output(std::move(output));
    all.accumulate_in_output();
    return all.take();
  });
}

rpc::Future<void> Group::all_reduce(std::vector<at::Tensor> tensors, ReduceOp op, Timeout timeout,
                                    Site site) const {
  if (is_on_device(tensors))
    return on_device(*core_, tensors.front(), {Operation::all_reduce, shapes_of(tensors), {}, op}, timeout,
                     site,
                     [&](const Ranks& ranks, Timeout limit) { return ranks.all_reduce(tensors, op, limit); });
  return begin(core_, inlined_, [&] {
    expect_some(tensors);
    Preparation all(*core_, Operation::all_reduce, tensors.front(), timeout, site);
    for (const at::Tensor& tensor : tensors) check_same(tensors.front(), tensor);
    all.set_reduction(op);
    all.signature().shapes = shapes_of(tensors);
    for (const at::Tensor& tensor : tensors) all.layout().elements += count_of(tensor);
    Output output = all.needs_scratch() ? Output::copied(tensors) : Output(tensors, core_->space());
    output.gather();
    all.set_input(output.memory());
    all.set_output(std::move(output));
    all.accumulate_in_output();
    return all.take();
  });
}

rpc::Future<void> Group::reduce(at::Tensor tensor, int root, ReduceOp op, Timeout timeout, Site site) const {
  if (is_on_device(tensor))
    return on_device(
        *core_, tensor, {Operation::reduce, {shape_of(tensor)}, root, op}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.reduce(tensor, root, op, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::reduce, tensor, timeout, site);
    all.set_root(root);
    all.set_reduction(op);
    all.signature().shapes = {shape_of(tensor)};
    all.set_input(flat(tensor));
    all.layout().elements = count_of(tensor);
    if (all.is_root()) all.set_output(Output(tensor));
    return all.take();
  });
}

rpc::Future<void> Group::broadcast(at::Tensor tensor, int root, Timeout timeout, Site site) const {
  if (is_on_device(tensor))
    return on_device(*core_, tensor, {Operation::broadcast, {shape_of(tensor)}, root}, timeout, site,
                     [&](const Ranks& ranks, Timeout limit) { return ranks.broadcast(tensor, root, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::broadcast, tensor, timeout, site);
    all.set_root(root);
    all.signature().shapes = {shape_of(tensor)};
    if (all.is_root()) {
      const at::Tensor memory = flat(tensor);
      all.set_input(memory);
      all.set_output(Output(memory));
    } else {
      all.set_output(Output(tensor));
    }
    all.layout().elements = count_of(tensor);
    return all.take();
  });
}

rpc::Future<void> Group::broadcast(std::vector<at::Tensor> tensors, int root, Timeout timeout,
                                   Site site) const {
  if (is_on_device(tensors))
    return on_device(
        *core_, tensors.front(), {Operation::broadcast, shapes_of(tensors), root}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.broadcast(tensors, root, limit); });
  return begin(core_, inlined_, [&] {
    expect_some(tensors);
    Preparation all(*core_, Operation::broadcast, tensors.front(), timeout, site);
    for (const at::Tensor& tensor : tensors) check_same(tensors.front(), tensor);
    all.set_root(root);
    all.signature().shapes = shapes_of(tensors);
    if (all.is_root()) {
      const at::Tensor memory = flat(tensors);
      all.layout().elements = count_of(memory);
      all.set_input(memory);
      all.set_output(Output(memory));
    } else {
      Output output(std::move(tensors));
      all.layout().elements = count_of(output.memory());
      all.set_output(std::move(output));
    }
    return all.take();
  });
}

rpc::Future<void> Group::all_gather(at::Tensor output, at::Tensor input, Timeout timeout, Site site) const {
  if (is_on_device(input))
    return on_device(
        *core_, input, {Operation::all_gather, {shape_of(input)}}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.all_gather(output, input, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::all_gather, input, timeout, site);
    check_same(input, output);
    all.signature().shapes = {shape_of(input)};
    all.layout().blocks = equal_blocks(*core_, output, input);
    all.set_input(flat(input));
    all.set_output(Output(output));
    return all.take();
  });
}

// Rank after rank, and of each the tensors one after the other: what lies between is put in order at the end.
rpc::Future<void> Group::all_gather(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                    Timeout timeout, Site site) const {
  if (is_on_device(inputs))
    return on_device(
        *core_, inputs.front(), {Operation::all_gather, shapes_of(inputs)}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.all_gather(outputs, inputs, limit); });
  return begin(core_, inlined_, [&] {
    const Tensors all_of_them = expect_pairs(outputs, inputs);
    Preparation all(*core_, Operation::all_gather, inputs.front(), timeout, site);
    for (const at::Tensor& tensor : all_of_them) check_same(inputs.front(), tensor);
    all.signature().shapes = shapes_of(inputs);
    Tensors parts;  // of the outputs, as they come
    for (int rank = 0; rank < size(); ++rank)
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        (void)equal_blocks(*core_, outputs[i], inputs[i]);
        parts.push_back(part_of(outputs[i], rank, size()));
      }
    const at::Tensor memory = flat(inputs);
    all.layout().blocks = even_blocks(count_of(memory) * static_cast<std::size_t>(size()), size());
    all.set_input(memory);
    all.set_output(Output(std::move(parts)));
    return all.take();
  });
}

rpc::Future<void> Group::all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Timeout timeout,
                                      Site site) const {
  if (is_on_device(input))
    return on_device(
        *core_, input, {Operation::all_gather_v, shapes_of(outputs)}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.all_gather_v(outputs, input, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::all_gather_v, input, timeout, site);
    expect_one_each(*core_, outputs);
    for (const at::Tensor& output : outputs) check_same(input, output);
    if (outputs[static_cast<std::size_t>(rank())].numel() != input.numel())
      refuse("the output of a rank is as large as its input");
    all.signature().shapes = shapes_of(outputs);
    all.layout().blocks = blocks_of(outputs);
    all.set_input(flat(input));
    all.set_output(Output(std::move(outputs)));
    return all.take();
  });
}

rpc::Future<void> Group::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, Timeout timeout,
                                        Site site) const {
  if (is_on_device(input))
    return on_device(
        *core_, input, {Operation::reduce_scatter, {shape_of(input)}, {}, op}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.reduce_scatter(output, input, op, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::reduce_scatter, input, timeout, site);
    check_same(input, output);
    all.set_reduction(op);
    all.signature().shapes = {shape_of(input)};
    all.layout().blocks = equal_blocks(*core_, input, output);
    all.set_input(flat(input));
    all.set_output(Output(output));
    return all.take();
  });
}

rpc::Future<void> Group::reduce_scatter(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                        ReduceOp op, Timeout timeout, Site site) const {
  if (is_on_device(inputs))
    return on_device(
        *core_, inputs.front(), {Operation::reduce_scatter, shapes_of(inputs), {}, op}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.reduce_scatter(outputs, inputs, op, limit); });
  return begin(core_, inlined_, [&] {
    const Tensors all_of_them = expect_pairs(outputs, inputs);
    Preparation all(*core_, Operation::reduce_scatter, inputs.front(), timeout, site);
    for (const at::Tensor& tensor : all_of_them) check_same(inputs.front(), tensor);
    all.set_reduction(op);
    all.signature().shapes = shapes_of(inputs);
    Tensors parts;  // of the inputs, as they go
    for (int rank = 0; rank < size(); ++rank)
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        (void)equal_blocks(*core_, inputs[i], outputs[i]);
        parts.push_back(part_of(inputs[i], rank, size()));
      }
    const at::Tensor memory = flat(parts);
    all.layout().blocks = even_blocks(count_of(memory), size());
    all.set_input(memory);
    all.set_output(Output(std::move(outputs)));
    return all.take();
  });
}

rpc::Future<void> Group::reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op,
                                          Timeout timeout, Site site) const {
  if (is_on_device(output))
    return on_device(
        *core_, output, {Operation::reduce_scatter_v, shapes_of(inputs), {}, op}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.reduce_scatter_v(output, inputs, op, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::reduce_scatter_v, output, timeout, site);
    expect_one_each(*core_, inputs);
    for (const at::Tensor& input : inputs) check_same(output, input);
    if (inputs[static_cast<std::size_t>(rank())].numel() != output.numel())
      refuse("the output of a rank is as large as its part of the input");
    all.set_reduction(op);
    all.signature().shapes = shapes_of(inputs);
    all.set_input(flat(inputs));
    all.layout().blocks = blocks_of(inputs);
    all.set_output(Output(output));
    return all.take();
  });
}

rpc::Future<void> Group::all_to_all(at::Tensor output, at::Tensor input, Timeout timeout, Site site) const {
  if (is_on_device(input))
    return on_device(
        *core_, input, {Operation::all_to_all, {shape_of(input)}}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.all_to_all(output, input, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::all_to_all, input, timeout, site);
    check_same(input, output);
    if (input.numel() != output.numel() || input.numel() % size() != 0)
      refuse("input and output are of one size, a multiple of the number of ranks");
    all.signature().shapes = {shape_of(input)};
    all.layout().blocks = all.layout().from = even_blocks(count_of(input), size());
    all.set_input(flat(input));
    all.set_output(Output(output));
    return all.take();
  });
}

rpc::Future<void> Group::all_to_all_v(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs,
                                      Timeout timeout, Site site) const {
  if (is_on_device(inputs))
    return on_device(
        *core_, inputs.front(), {Operation::all_to_all_v, {{-1}}, {}, {}, outputs, inputs}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.all_to_all_v(outputs, inputs, limit); });
  return begin(core_, inlined_, [&] {
    expect_one_each(*core_, inputs);
    expect_one_each(*core_, outputs);
    Preparation all(*core_, Operation::all_to_all_v, inputs.front(), timeout, site);
    for (const Tensors& tensors : {inputs, outputs})
      for (const at::Tensor& tensor : tensors) check_same(inputs.front(), tensor);
    all.layout().blocks = blocks_of(inputs);
    all.layout().from = blocks_of(outputs);
    all.signature().shapes = {{-1}};
    all.set_input(flat(inputs));
    all.set_output(Output(std::move(outputs)));
    return all.take();
  });
}

rpc::Future<void> Group::gather(std::vector<at::Tensor> outputs, at::Tensor input, int root, Timeout timeout,
                                Site site) const {
  if (is_on_device(input))
    return on_device(
        *core_, input, {Operation::gather, {shape_of(input)}, root}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.gather(outputs, input, root, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::gather, input, timeout, site);
    all.set_root(root);
    all.signature().shapes = {shape_of(input)};
    all.layout().blocks = even_blocks(count_of(input) * static_cast<std::size_t>(size()), size());
    all.set_input(flat(input));
    if (all.is_root()) {
      expect_one_each(*core_, outputs);
      for (const at::Tensor& output : outputs) {
        check_same(input, output);
        if (output.numel() != input.numel()) refuse("outputs are as large as the input");
      }
      all.set_output(Output(std::move(outputs)));
    }
    return all.take();
  });
}

rpc::Future<void> Group::scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root, Timeout timeout,
                                 Site site) const {
  if (is_on_device(output))
    return on_device(
        *core_, output, {Operation::scatter, {shape_of(output)}, root}, timeout, site,
        [&](const Ranks& ranks, Timeout limit) { return ranks.scatter(output, inputs, root, limit); });
  return begin(core_, inlined_, [&] {
    Preparation all(*core_, Operation::scatter, output, timeout, site);
    all.set_root(root);
    all.signature().shapes = {shape_of(output)};
    all.layout().blocks = even_blocks(count_of(output) * static_cast<std::size_t>(size()), size());
    if (all.is_root()) {
      expect_one_each(*core_, inputs);
      for (const at::Tensor& input : inputs) {
        check_same(output, input);
        if (output.numel() != input.numel()) refuse("inputs are as large as the output");
      }
      all.set_input(flat(inputs));
    }
    all.set_output(Output(output));
    return all.take();
  });
}

rpc::Future<void> Group::barrier(Timeout timeout, Site site) const {
  return begin(core_, inlined_, [&] {
    Collective barrier;
    barrier.site = site;
    barrier.timeout = timeout;
    return barrier;
  });
}

}  // namespace weft::collectives
