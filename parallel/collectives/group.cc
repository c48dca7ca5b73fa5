#include <weft/parallel/collectives/group.h>

#include <weft/parallel/collectives/context.h>
#include <weft/parallel/collectives/meeting.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace weft::collectives {
namespace {

using rpc::Error;
using rpc::ErrorKind;
using Tensors = std::vector<at::Tensor>;

void refuse(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

void check(const at::Tensor& tensor) {
  if (!tensor.defined()) refuse("a collective over an undefined tensor");
  if (tensor.layout() != at::kStrided || tensor.is_quantized())
    throw Error(ErrorKind::unsupported, "collectives are over dense tensors");
  if (!tensor.is_cpu())
    throw Error(ErrorKind::unsupported,
                "this group's tensors live in the host's memory, not on " + tensor.device().str());
}

void check_same(const at::Tensor& first, const at::Tensor& tensor) {
  check(tensor);
  if (tensor.scalar_type() != first.scalar_type()) refuse("tensors of one collective are of one dtype");
}

// Elements one after the other, of a tensor or of several: the tensor itself where it is so.
at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().contiguous().view({-1}); }
at::Tensor flat(const Tensors& tensors) {
  if (tensors.size() == 1) return flat(tensors.front());
  Tensors parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(flat(tensor));
  return at::cat(parts);
}

// Where results are put: one piece of memory, the tensor's own where it can be, else copied there in the end.
class Output {
 public:
  explicit Output(at::Tensor tensor) : tensors_{std::move(tensor)} {
    const at::Tensor& only = tensors_.front();
    if (only.is_contiguous()) {
      memory_ = only.detach().view({-1});
      tensors_.clear();
    } else {
      allocate(only);
    }
  }
  explicit Output(Tensors tensors) : tensors_(std::move(tensors)) { allocate(tensors_.front()); }

  const at::Tensor& memory() const { return memory_; }
  void write_back() const {
    const at::NoGradGuard no_grad;
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : tensors_) {
      tensor.detach().copy_(memory_.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
      begin += tensor.numel();
    }
  }

 private:
  void allocate(const at::Tensor& like) {
    std::int64_t elements = 0;
    for (const at::Tensor& tensor : tensors_) {
      for (std::int64_t d = 0; d < tensor.dim(); ++d)
        if (tensor.stride(d) == 0 && tensor.size(d) > 1) refuse("an expanded tensor cannot take a result");
      elements += tensor.numel();
    }
    memory_ = at::empty({elements}, like.options().requires_grad(false));
  }

  Tensors tensors_;  // to be written in the end
  at::Tensor memory_;
};

std::vector<std::int64_t> shape_of(const at::Tensor& tensor) { return tensor.sizes().vec(); }
std::vector<std::vector<std::int64_t>> shapes_of(const Tensors& tensors) {
  std::vector<std::vector<std::int64_t>> shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(shape_of(tensor));
  return shapes;
}
std::vector<Range> blocks_of(const Tensors& tensors) {
  std::vector<std::size_t> sizes;
  for (const at::Tensor& tensor : tensors) sizes.push_back(static_cast<std::size_t>(tensor.numel()));
  return collectives::blocks_of(sizes);
}
std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }
std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

// A collective being put together: what it means, its memory, and what becomes of its results.
class Preparation {
 public:
  Preparation(const GroupCore& group, Operation operation, const at::Tensor& first, Deadline deadline,
              const std::source_location& site)
      : group_(group) {
    check(first);
    collective_.signature.operation = operation;
    collective_.layout.operation = operation;
    collective_.signature.dtype = first.scalar_type();
    collective_.site = site;
    collective_.deadline = deadline;
    collective_.memory.item_size = first.element_size();
  }

  Signature& signature() { return collective_.signature; }
  void set_root(int root) {
    if (root < 0 || root >= group_.size())
      refuse("root " + std::to_string(root) + " of a group of " + std::to_string(group_.size()));
    collective_.signature.root = root;
    collective_.layout.root = root;
  }
  void set_reduction(ReduceOp op) {
    collective_.signature.reduction = op.kind;
    collective_.reduction.emplace(op, collective_.signature.dtype);
  }
  bool is_root() const { return collective_.signature.root == group_.rank(); }
  Layout& layout() { return collective_.layout; }
  // As large as the layout; the result is copied into the tensor when all is done.
  bool needs_scratch() const { return group_.writes_early(collective_); }

  void set_input(at::Tensor memory) {
    if (collective_.reduction && collective_.reduction->premultiplies()) {
      at::Tensor scaled = at::empty_like(memory);
      collective_.reduction->premultiply(data_of(scaled), data_of(memory), count_of(memory));
      memory = std::move(scaled);
    }
    collective_.memory.input = data_of(memory);
    kept_.push_back(std::move(memory));
  }
  void set_output(Output output) {
    collective_.memory.output = data_of(output.memory());
    kept_.push_back(output.memory());
    outputs_.push_back(std::move(output));
  }
  // The output's memory is the accumulator too, where its elements are as wide.
  void accumulate_in_output() {
    if (!collective_.reduction->accumulates_wide())
      collective_.memory.accumulator = collective_.memory.output;
  }

  Collective take() {
    collective_.memory.keeper = std::make_shared<Tensors>(std::move(kept_));
    if (!outputs_.empty())
      collective_.finish = [outputs = std::move(outputs_)] {
        for (const Output& output : outputs) output.write_back();
      };
    return std::move(collective_);
  }

 private:
  const GroupCore& group_;
  Collective collective_;
  Tensors kept_;
  std::vector<Output> outputs_;
};

// Errors of the arguments are the future's, as all others.
template <class F>
rpc::Future<void> begin(const std::shared_ptr<GroupCore>& core, F prepare) {
  auto collective = rpc::capture([&] {
    const at::NoGradGuard no_grad;
    return prepare();
  });
  if (!collective.ok()) return rpc::Future<void>::made(rpc::Result<void>(collective.error()));
  return core->start(std::move(collective).get());
}

void expect_one_each(const GroupCore& group, const Tensors& tensors) {
  if (tensors.size() != static_cast<std::size_t>(group.size()))
    refuse(std::to_string(tensors.size()) + " tensors where each of " + std::to_string(group.size()) +
           " ranks has one");
}

// The whole of `parts`, and how it is cut.
std::vector<Range> equal_blocks(const GroupCore& group, const at::Tensor& whole, const at::Tensor& part) {
  if (whole.numel() != part.numel() * group.size())
    refuse(std::to_string(whole.numel()) + " elements where " + std::to_string(group.size()) + " × " +
           std::to_string(part.numel()) + " are due");
  return even_blocks(count_of(whole), group.size());
}

std::vector<std::string> members_by_rank(const rpc::Agent& agent) {
  std::map<std::size_t, std::string> by_rank;
  for (const rpc::Member& member : agent.members())
    if (member.rank) by_rank[*member.rank] = member.name;
  std::vector<std::string> names;
  for (auto& [rank, name] : by_rank) names.push_back(std::move(name));
  if (names.empty() || names.size() != agent.world_size())
    throw Error(ErrorKind::failed_precondition,
                "a group of all members is made in a world of fixed size, once all have come: wait_for()");
  return names;
}

void expect_rank(const GroupCore& group, int rank) {
  if (rank < 0 || rank >= group.size())
    refuse("rank " + std::to_string(rank) + " of a group of " + std::to_string(group.size()));
}

std::string type_of(const at::Tensor& tensor) { return tensor_text(tensor.scalar_type(), shape_of(tensor)); }

rpc::Buffer bytes_of(const at::Tensor& memory) {
  return {std::make_shared<at::Tensor>(memory), data_of(memory), memory.nbytes()};
}

}  // namespace

const std::string& Group::name() const { return core_->name(); }
int Group::rank() const { return core_->rank(); }
int Group::size() const { return core_->size(); }
std::vector<std::string> Group::members() const {
  std::vector<std::string> names;
  for (const rpc::AgentId& member : core_->members()) names.push_back(member.name);
  return names;
}
void Group::abort(const std::string& reason) const {
  core_->abort("rank " + std::to_string(rank()) + " (" + members()[static_cast<std::size_t>(rank())] +
               ") aborted it: " + reason);
}

rpc::Future<Group> Group::create(rpc::Agent& agent, GroupOptions options) {
  const auto context = Context::of(*agent.core());
  std::vector<std::string>& names = options.members;
  if (names.empty()) names = members_by_rank(agent);
  const auto self = std::find(names.begin(), names.end(), agent.name());
  if (self == names.end()) refuse("group '" + options.name + "': '" + agent.name() + "' is no member of it");
  if (std::set(names.begin(), names.end()).size() != names.size())
    refuse("group '" + options.name + "' has a member twice");
  const int rank = static_cast<int>(self - names.begin());

  context->expect_group();
  return meet(agent, options, rank, rank == 0 ? context->next_number() : 0)
      .then([context, options, rank](rpc::Result<Meeting>&& meeting) {
        return rpc::capture([&] {
          if (!meeting.ok()) context->give_up_group();
          Meeting met = std::move(meeting).get();
          const auto forget = [context = std::weak_ptr(context), id = met.id](GroupCore* core) {
            if (const auto known = context.lock()) known->remove(id);
            delete core;
          };
          const std::shared_ptr<GroupCore> core(
              new GroupCore(context->core(), met.id, options.name, std::move(met.members), rank,
                            options.deadline, std::move(met.space)),
              forget);
          context->add(core);
          return Group(core);
        });
      });
}

at::Tensor Group::empty(at::IntArrayRef sizes, const at::TensorOptions& options) const {
  SharedSpace* const space = core_->space();
  if (space == nullptr || !options.device().is_cpu() || options.layout() != at::kStrided)
    return at::empty(sizes, options);
  const std::size_t bytes = static_cast<std::size_t>(c10::multiply_integers(sizes)) *
                            c10::elementSize(c10::typeMetaToScalarType(options.dtype()));
  auto memory = space->allocate(bytes);
  if (memory == nullptr) return at::empty(sizes, options);
  void* const data = memory.get();
  return at::from_blob(data, sizes, [memory = std::move(memory)](void*) {}, options);
}

bool Group::shares_memory() const { return core_->space() != nullptr; }

rpc::Future<void> Group::all_reduce(at::Tensor tensor, ReduceOp op, Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::all_reduce, tensor, deadline, site);
    all.set_reduction(op);
    all.signature().shapes = {shape_of(tensor)};
    all.layout().elements = count_of(tensor);
    // What has been changed before the ranks are known to agree is not the program's.
    const bool scratch = all.needs_scratch();
    Output output = scratch ? Output(Tensors{tensor}) : Output(tensor);
    if (scratch || !tensor.is_contiguous()) output.memory().copy_(tensor.detach().reshape({-1}));
    all.set_input(output.memory());
    all.set_output(std::move(output));
    all.accumulate_in_output();
    return all.take();
  });
}

rpc::Future<void> Group::reduce(at::Tensor tensor, int root, ReduceOp op, Deadline deadline,
                                Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::reduce, tensor, deadline, site);
    all.set_root(root);
    all.set_reduction(op);
    all.signature().shapes = {shape_of(tensor)};
    all.set_input(flat(tensor));
    all.layout().elements = count_of(tensor);
    if (all.is_root()) all.set_output(Output(tensor));
    return all.take();
  });
}

rpc::Future<void> Group::broadcast(at::Tensor tensor, int root, Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::broadcast, tensor, deadline, site);
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

rpc::Future<void> Group::all_gather(at::Tensor output, at::Tensor input, Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::all_gather, input, deadline, site);
    check_same(input, output);
    all.signature().shapes = {shape_of(input)};
    all.layout().blocks = equal_blocks(*core_, output, input);
    all.set_input(flat(input));
    all.set_output(Output(output));
    return all.take();
  });
}

rpc::Future<void> Group::all_gather_v(std::vector<at::Tensor> outputs, at::Tensor input, Deadline deadline,
                                      Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::all_gather_v, input, deadline, site);
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

rpc::Future<void> Group::reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, Deadline deadline,
                                        Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::reduce_scatter, input, deadline, site);
    check_same(input, output);
    all.set_reduction(op);
    all.signature().shapes = {shape_of(input)};
    all.layout().blocks = equal_blocks(*core_, input, output);
    all.set_input(flat(input));
    all.set_output(Output(output));
    return all.take();
  });
}

rpc::Future<void> Group::reduce_scatter_v(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op,
                                          Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::reduce_scatter_v, output, deadline, site);
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

rpc::Future<void> Group::all_to_all(at::Tensor output, at::Tensor input, Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::all_to_all, input, deadline, site);
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
                                      Deadline deadline, Site site) const {
  return begin(core_, [&] {
    expect_one_each(*core_, inputs);
    expect_one_each(*core_, outputs);
    Preparation all(*core_, Operation::all_to_all_v, inputs.front(), deadline, site);
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

rpc::Future<void> Group::gather(std::vector<at::Tensor> outputs, at::Tensor input, int root,
                                Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::gather, input, deadline, site);
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

rpc::Future<void> Group::scatter(at::Tensor output, std::vector<at::Tensor> inputs, int root,
                                 Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Preparation all(*core_, Operation::scatter, output, deadline, site);
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

rpc::Future<void> Group::barrier(Deadline deadline, Site site) const {
  return begin(core_, [&] {
    Collective barrier;
    barrier.site = site;
    barrier.deadline = deadline;
    return barrier;
  });
}

rpc::Future<void> Group::send(at::Tensor tensor, int to, std::uint64_t tag, Deadline deadline,
                              Site site) const {
  auto message = rpc::capture([&] {
    check(tensor);
    expect_rank(*core_, to);
    return Message{tag, type_of(tensor), rpc::site_text(site), bytes_of(flat(tensor)), deadline};
  });
  if (!message.ok()) return rpc::Future<void>::made(rpc::Result<void>(message.error()));
  return core_->send(to, std::move(message).get());
}

rpc::Future<int> Group::receive(at::Tensor tensor, std::optional<int> from, std::uint64_t tag,
                                Deadline deadline, const Site& site) const {
  auto output = rpc::capture([&] {
    check(tensor);
    if (from) expect_rank(*core_, *from);
    return Output(tensor);
  });
  if (!output.ok()) return rpc::Future<int>::made(rpc::Result<int>(output.error()));
  const Output memory = std::move(output).get();
  return core_
      ->receive(from, {tag, type_of(tensor), rpc::site_text(site), bytes_of(memory.memory()), deadline})
      .then([memory](rpc::Result<int>&& sender) {
        if (sender.ok()) memory.write_back();
        return std::move(sender);
      });
}

rpc::Future<void> Group::recv(at::Tensor tensor, int from, std::uint64_t tag, Deadline deadline,
                              Site site) const {
  return receive(std::move(tensor), from, tag, deadline, site).then([](rpc::Result<int>&& sender) {
    return sender.ok() ? rpc::Result<void>{} : rpc::Result<void>(sender.error());
  });
}

rpc::Future<int> Group::recv_any(at::Tensor tensor, std::uint64_t tag, Deadline deadline, Site site) const {
  return receive(std::move(tensor), std::nullopt, tag, deadline, site);
}

}  // namespace weft::collectives
