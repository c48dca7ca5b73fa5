// In step i a rank has the keys K and values V of rank - i. With S = scale Q K^T of one step, L the logarithm
// of the sum of exp(S) over the keys, and O = exp(S - L) V, two steps are merged by
//   L = log(exp(L1) + exp(L2)),   O = exp(L1 - L) O1 + exp(L2 - L) O2.
// Backward uses L of all steps, so that P = exp(S - L) are the probabilities of the whole row:
//   dV = P^T dO,   dS = P (dO V^T - rowsum(dO O)) scale,   dQ = dS K,   dK = dS^T Q.
#include <weft/parallel/tensor_parallel/ring_attention.h>

#include <weft/parallel/tensor_parallel/internal/agreement.h>
#include <weft/parallel/tensor_parallel/internal/overlapped_group.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace weft::tensor_parallel {
namespace {

using collectives::Group;
using collectives::PointToPoint;
using InFlight = OverlappedGroup::InFlight;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::uint64_t keys_tag = 0, gradients_tag = 1;

// A message to the next rank, and a message from the previous rank.
struct Passing {
  at::Tensor sent, received;  // kept while they are in flight
  InFlight in_flight;
  Group group;

  static Passing start(OverlappedGroup& ranks, const at::Tensor& sent, std::uint64_t tag) {
    at::Tensor received = at::empty_like(sent);
    const int size = ranks.group().size(), rank = ranks.group().rank();
    std::vector<PointToPoint> messages{{PointToPoint::Kind::send, sent, (rank + 1) % size, tag},
                                       {PointToPoint::Kind::recv, received, (rank + size - 1) % size, tag}};
    return {sent, received,
            ranks.start(sent.device(), [&](const Group& group) { return group.batch(std::move(messages)); }),
            ranks.group()};
  }
  at::Tensor finish() {
    try {
      in_flight.finish();
    } catch (const rpc::Error& error) {
      group.abort(std::string("RingAttention: ") +
                  error.what());  // other ranks may wait for further messages
      throw;
    }
    return received;
  }
};

// Keys and values in one message: [batch, heads, part, features of both].
at::Tensor packed(const at::Tensor& key, const at::Tensor& value) { return at::cat({key, value}, -1); }

struct Held : torch::CustomClassHolder {
  Held(std::shared_ptr<OverlappedGroup> r, bool c, double s) : ranks(std::move(r)), causal(c), scale(s) {}
  const std::shared_ptr<OverlappedGroup> ranks;
  const bool causal;
  const double scale;

  // The rank whose keys are here in that step.
  int source(int step) const {
    return (ranks->group().rank() + ranks->group().size() - step) % ranks->group().size();
  }
  bool skips(int step) const { return causal && source(step) > ranks->group().rank(); }
  at::Tensor scores(const at::Tensor& query, const at::Tensor& key, int step) const {
    at::Tensor scores = query.matmul(key.transpose(-1, -2)).mul_(scale);
    if (causal && step == 0) {
      const at::Tensor later =
          at::ones({scores.size(-2), scores.size(-1)}, scores.options().dtype(at::kBool)).triu(1);
      scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
    }
    return scores;
  }
};

struct RingFunction : torch::autograd::Function<RingFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const c10::intrusive_ptr<Held>& held) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const int steps = held->ranks->group().size();
    const std::int64_t features = key.size(-1);
    const auto type = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor wide = query.to(type);
    at::Tensor current = packed(key, value), output, log_sum;
    for (int step = 0; step < steps; ++step) {
      std::optional<Passing> next;
      if (step + 1 < steps) next = Passing::start(*held->ranks, current, keys_tag);
      if (!held->skips(step)) {
        const at::Tensor both = current.to(type);
        const at::Tensor scores = held->scores(wide, both.narrow(-1, 0, features), step);
        const at::Tensor log_here = scores.logsumexp(-1, /*keepdim=*/true);
        const at::Tensor here = (scores - log_here).exp_().matmul(both.narrow(-1, features, value.size(-1)));
        if (step == 0) {
          output = here;
          log_sum = log_here;
        } else {
          const at::Tensor merged = at::logaddexp(log_sum, log_here);
          output = output * (log_sum - merged).exp_() + here * (log_here - merged).exp_();
          log_sum = merged;
        }
      }
      if (next) current = next->finish();
    }
    output = output.to(query.scalar_type());
    context->save_for_backward({query, key, value, output, log_sum});
    context->saved_data["held"] = c10::IValue::make_capsule(held);
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_recorded_backward("RingAttention");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto saved = context->get_saved_variables();
    const auto capsule = context->saved_data["held"].toCapsule();
    const auto& held = static_cast<const Held&>(*capsule);
    const at::Tensor &key = saved[1], &value = saved[2], &log_sum = saved[4];
    const auto type = log_sum.scalar_type();
    const at::Tensor query = saved[0].to(type), gradient = gradients[0].to(type);
    const at::Tensor delta = (gradient * saved[3].to(type)).sum(-1, /*keepdim=*/true);
    const int steps = held.ranks->group().size();
    const std::int64_t features = key.size(-1);

    at::Tensor of_query = at::zeros_like(query), current = packed(key, value);
    // The gradients of the keys and values that are here, so far. They are sent one step behind the keys and
    // values, and at the end to the rank that owns these.
    at::Tensor travelling = at::zeros_like(current, current.options().dtype(type));
    std::optional<Passing> arriving;
    for (int step = 0; step < steps; ++step) {
      std::optional<Passing> next;
      if (step + 1 < steps) next = Passing::start(*held.ranks, current, keys_tag);
      at::Tensor here;
      if (!held.skips(step)) {
        const at::Tensor both = current.to(type);
        const at::Tensor keys = both.narrow(-1, 0, features),
                         values = both.narrow(-1, features, value.size(-1));
        const at::Tensor probabilities = (held.scores(query, keys, step) - log_sum).exp_();
        const at::Tensor of_scores =
            (gradient.matmul(values.transpose(-1, -2)) - delta).mul_(probabilities).mul_(held.scale);
        of_query.add_(of_scores.matmul(keys));
        here = packed(of_scores.transpose(-1, -2).matmul(query),
                      probabilities.transpose(-1, -2).matmul(gradient));
      }
      if (arriving) travelling = arriving->finish();
      if (here.defined()) travelling.add_(here);
      if (steps > 1) arriving = Passing::start(*held.ranks, travelling, gradients_tag);
      if (next) current = next->finish();
    }
    if (arriving) travelling = arriving->finish();
    return {of_query.to(saved[0].scalar_type()),
            travelling.narrow(-1, 0, features).to(key.scalar_type()),
            travelling.narrow(-1, features, value.size(-1)).to(value.scalar_type()),
            {}};
  }
};

std::string shape_text(const at::Tensor& tensor) {
  std::string text = c10::toString(tensor.scalar_type());
  for (const std::int64_t size : tensor.sizes()) text += " " + std::to_string(size);
  return text;
}

}  // namespace

RingAttention::RingAttention(const Group& group, RingAttentionOptions options)
    : options_(options), ranks_(std::make_shared<OverlappedGroup>(group)) {
  std::ostringstream text;
  text << "RingAttention(causal=" << options_.causal;
  if (options_.scale) text << ", scale=" << *options_.scale;
  expect_agreement(group, text.str() + ")");
}

at::Tensor RingAttention::operator()(const at::Tensor& query, const at::Tensor& key,
                                     const at::Tensor& value) const {
  const bool agree = query.dim() == 4 && key.sizes() == query.sizes() && value.dim() == 4 &&
                     value.sizes().slice(0, 3) == query.sizes().slice(0, 3) &&
                     key.scalar_type() == query.scalar_type() && value.scalar_type() == query.scalar_type();
  if (!agree)
    refuse("RingAttention", "query " + shape_text(query) + ", key " + shape_text(key) + ", value " +
                                shape_text(value) +
                                ", expected [batch, heads, part of the sequence, features] of one type, "
                                "equal except for the features of the value");
  const double scale = options_.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
  return RingFunction::apply(query, key, value, c10::make_intrusive<Held>(ranks_, options_.causal, scale));
}

}  // namespace weft::tensor_parallel
