// Each function creates a node whose backward is the adjoint, which is another function of this file. So if
// backward is recorded, the adjoint is recorded too.
#include <weft/parallel/collectives/functional.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <numeric>
#include <optional>
#include <string>

namespace weft::collectives::functional {
namespace {

using Map = std::function<at::Tensor(const at::Tensor&)>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A call of a function of this file, for its refusals. operation: the collective for which other ranks may
// wait; nullopt: the function, split(), runs none.
struct Call {
  const Group& group;
  std::optional<Operation> operation;
  const at::Tensor& input;

  [[noreturn]] void refuse(const std::string& text) const {
    const rpc::Error error(
        rpc::ErrorKind::invalid_argument,
        "functional::" + std::string(operation ? name_of(*operation) : "split") + ": " + text);
    if (operation) group.decline(*operation, input.device(), error);
    throw error;
  }
};

struct Recorded : torch::autograd::Function<Recorded> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const Map& function,
                            const Map& adjoint) {
    context->saved_data["adjoint"] = c10::IValue::make_capsule(c10::make_intrusive<Adjoint>(adjoint));
    return function(input);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto adjoint = context->saved_data["adjoint"].toCapsule();
    return {static_cast<const Adjoint&>(*adjoint).map(gradients[0]), {}, {}};
  }

 private:
  struct Adjoint : torch::CustomClassHolder {
    explicit Adjoint(Map m) : map(std::move(m)) {}
    const Map map;
  };
};

// Waits for the result. On a device, the stream orders later work after the result, so only errors that are
// already known are thrown.
void finish(const Group& group, const at::Tensor& tensor, rpc::Future<void> future) {
  if (tensor.is_cpu() || future.ready()) group.wait(std::move(future));
}

void expect_linear(const Call& call, const ReduceOp& op) {
  if (op.kind != ReduceOp::Kind::sum && op.kind != ReduceOp::Kind::avg)
    call.refuse("the operation is " + op.name() + ", expected sum or avg");
}

std::int64_t dim_of(const Call& call, std::int64_t dim) {
  const std::int64_t place = dim < 0 ? dim + call.input.dim() : dim;
  if (place < 0 || place >= call.input.dim())
    call.refuse("dimension " + std::to_string(dim) + " of a tensor with " + std::to_string(call.input.dim()) +
                " dimensions");
  return place;
}

std::int64_t part_of(const Call& call, std::int64_t dim) {
  const std::int64_t size = call.input.size(dim), ranks = call.group.size();
  if (size % ranks != 0)
    call.refuse("dimension " + std::to_string(dim) + " has " + std::to_string(size) +
                " elements, expected a multiple of " + std::to_string(ranks) + ", the number of ranks");
  return size / ranks;
}

// The parts along `dim`, one after the other in memory.
at::Tensor parts_of(const Group& group, const at::Tensor& input, std::int64_t dim) {
  if (dim == 0) return input.contiguous().unflatten(0, {group.size(), input.size(0) / group.size()});
  return at::stack(input.chunk(group.size(), dim));
}
at::Tensor joined(const at::Tensor& parts, std::int64_t dim) {
  return dim == 0 ? parts.flatten(0, 1) : at::cat(parts.unbind(), dim);
}

at::Tensor averaged(const Group& group, const at::Tensor& sum, const ReduceOp& op) {
  return op.kind == ReduceOp::Kind::avg ? sum / group.size() : sum;
}

}  // namespace

at::Tensor all_reduce(const Group& group, const at::Tensor& input, ReduceOp op, Copies copies) {
  expect_linear({group, Operation::all_reduce, input}, op);
  return Recorded::apply(
      input,
      [&](const at::Tensor& x) {
        at::Tensor output = x.clone(at::MemoryFormat::Contiguous);
        finish(group, output, group.inlined().all_reduce(output, op));
        return output;
      },
      [group, op, copies](const at::Tensor& gradient) {
        return copies == Copies::independent ? all_reduce(group, gradient, op)
                                             : averaged(group, copy(group, gradient), op);
      });
}

std::vector<at::Tensor> all_reduce(const Group& group, const std::vector<at::Tensor>& inputs, ReduceOp op,
                                   Copies copies) {
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> sizes;
  for (const at::Tensor& input : inputs) {
    if (input.scalar_type() != inputs.front().scalar_type())
      Call{group, Operation::all_reduce, input}.refuse(
          std::string("tensors of ") + c10::toString(inputs.front().scalar_type()) + " and " +
          c10::toString(input.scalar_type()) + ", expected one dtype");
    flat.push_back(input.reshape(-1));
    sizes.push_back(input.numel());
  }
  if (inputs.empty()) return {};
  std::vector<at::Tensor> outputs = all_reduce(group, at::cat(flat), op, copies).split_with_sizes(sizes);
  for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i] = outputs[i].reshape(inputs[i].sizes());
  return outputs;
}

at::Tensor copy(const Group& group, const at::Tensor& input) {
  return Recorded::apply(
      input, [](const at::Tensor& x) { return x; },
      [group](const at::Tensor& gradient) {
        return all_reduce(group, gradient, ReduceOp::sum, Copies::same);
      });
}

at::Tensor all_gather(const Group& group, const at::Tensor& input, std::int64_t dim, Copies copies) {
  dim = dim_of({group, Operation::all_gather, input}, dim);
  return Recorded::apply(
      input,
      [&](const at::Tensor& x) {
        std::vector<std::int64_t> sizes{group.size()};
        sizes.insert(sizes.end(), x.sizes().begin(), x.sizes().end());
        const at::Tensor parts = at::empty(sizes, x.options());
        finish(group, parts, group.inlined().all_gather(parts, x.contiguous()));
        return joined(parts, dim);
      },
      [group, dim, copies](const at::Tensor& gradient) {
        return copies == Copies::independent ? reduce_scatter(group, gradient, dim)
                                             : split(group, gradient, dim);
      });
}

at::Tensor reduce_scatter(const Group& group, const at::Tensor& input, std::int64_t dim, ReduceOp op) {
  const Call call{group, Operation::reduce_scatter, input};
  expect_linear(call, op);
  dim = dim_of(call, dim);
  part_of(call, dim);
  return Recorded::apply(
      input,
      [&](const at::Tensor& x) {
        const at::Tensor parts = parts_of(group, x, dim), output = at::empty_like(parts[0]);
        finish(group, output, group.inlined().reduce_scatter(output, parts, op));
        return output;
      },
      [group, dim, op](const at::Tensor& gradient) {
        return averaged(group, all_gather(group, gradient, dim), op);
      });
}

at::Tensor split(const Group& group, const at::Tensor& input, std::int64_t dim) {
  const Call call{group, std::nullopt, input};
  dim = dim_of(call, dim);
  const std::int64_t part = part_of(call, dim);
  return Recorded::apply(
      input, [&](const at::Tensor& x) { return x.narrow_copy(dim, group.rank() * part, part); },
      [group, dim](const at::Tensor& gradient) { return all_gather(group, gradient, dim, Copies::same); });
}

at::Tensor all_to_all(const Group& group, const at::Tensor& input, std::int64_t split_dim,
                      std::int64_t join_dim) {
  const Call call{group, Operation::all_to_all, input};
  split_dim = dim_of(call, split_dim);
  join_dim = dim_of(call, join_dim);
  part_of(call, split_dim);
  return Recorded::apply(
      input,
      [&](const at::Tensor& x) {
        const at::Tensor parts = parts_of(group, x, split_dim), output = at::empty_like(parts);
        finish(group, output, group.inlined().all_to_all(output, parts));
        return joined(output, join_dim);
      },
      [group, split_dim, join_dim](const at::Tensor& gradient) {
        return all_to_all(group, gradient, join_dim, split_dim);
      });
}

at::Tensor all_to_all_v(const Group& group, const at::Tensor& input, const std::vector<std::int64_t>& sent,
                        const std::vector<std::int64_t>& received) {
  const Call call{group, Operation::all_to_all_v, input};
  (void)dim_of(call, 0);
  for (const auto* counts : {&sent, &received})
    if (counts->size() != static_cast<std::size_t>(group.size()))
      call.refuse(std::to_string(counts->size()) + " counts, expected one for each of " +
                  std::to_string(group.size()) + " ranks");
  if (const auto rows = std::accumulate(sent.begin(), sent.end(), std::int64_t{0}); rows != input.size(0))
    call.refuse("`sent` has " + std::to_string(rows) + " rows, expected those of the input, " +
                std::to_string(input.size(0)));
  return Recorded::apply(
      input,
      [&](const at::Tensor& x) {
        std::vector<std::int64_t> sizes = x.sizes().vec();
        sizes[0] = std::accumulate(received.begin(), received.end(), std::int64_t{0});
        const at::Tensor output = at::empty(sizes, x.options());
        finish(group, output,
               group.inlined().all_to_all_v(output.split_with_sizes(received),
                                            x.contiguous().split_with_sizes(sent)));
        return output;
      },
      [group, sent, received](const at::Tensor& gradient) {
        return all_to_all_v(group, gradient, received, sent);
      });
}

at::Tensor broadcast(const Group& group, const at::Tensor& input, int root) {
  return Recorded::apply(
      input,
      [&](const at::Tensor& x) {
        at::Tensor output = x.clone(at::MemoryFormat::Contiguous);
        finish(group, output, group.inlined().broadcast(output, root));
        return output;
      },
      [group, root](const at::Tensor& gradient) { return reduce(group, gradient, root); });
}

at::Tensor reduce(const Group& group, const at::Tensor& input, int root) {
  return Recorded::apply(
      input,
      [&](const at::Tensor& x) {
        at::Tensor output = x.clone(at::MemoryFormat::Contiguous);
        finish(group, output, group.inlined().reduce(output, root));
        return group.rank() == root ? output : at::zeros_like(output);
      },
      [group, root](const at::Tensor& gradient) { return broadcast(group, gradient, root); });
}

}  // namespace weft::collectives::functional
