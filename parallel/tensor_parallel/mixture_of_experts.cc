// The choices of all tokens are sorted by expert. This order is also by rank, because a rank has consecutive
// experts. all_to_all_v sends each rank the range of its experts. A rank receives the choices ordered by
// sender, and by expert within a sender. A second sorting joins the rows of each expert. The outputs are sent
// back in the reverse order of these steps.
#include <weft/parallel/tensor_parallel/mixture_of_experts.h>

#include <weft/parallel/collectives/functional.h>
#include <weft/parallel/tensor_parallel/internal/agreement.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>
#include <sstream>

namespace weft::tensor_parallel {

using collectives::Group;

MixtureOfExpertsImpl::MixtureOfExpertsImpl(const Group& group, std::int64_t width, MixtureOptions options)
    : options_(std::move(options)), group_(group) {
  const std::int64_t experts = options_.experts, hidden = options_.hidden > 0 ? options_.hidden : 4 * width;
  std::ostringstream text;
  text << "MixtureOfExperts(" << width << ", experts=" << experts << ", hidden=" << hidden
       << ", top_k=" << options_.top_k << ", normalize=" << options_.normalize;
  if (options_.capacity_factor) text << ", capacity_factor=" << *options_.capacity_factor;
  text << ", average_gradients=" << options_.average_gradients << ")";
  expect_agreement(group, text.str(), options_.generator);
  divide(group, experts, "MixtureOfExperts: experts");
  if (options_.top_k < 1 || options_.top_k > experts)
    refuse("MixtureOfExperts", "top_k is " + std::to_string(options_.top_k) + ", expected 1 to " +
                                   std::to_string(experts) + ", the number of experts");
  if (options_.capacity_factor && !(*options_.capacity_factor > 0))
    refuse("MixtureOfExperts", "capacity_factor is " + std::to_string(*options_.capacity_factor) +
                                   ", expected a positive number");

  const auto draw = [&](at::IntArrayRef sizes, std::int64_t inputs) {
    return draw_uniform(sizes, 1 / std::sqrt(static_cast<double>(inputs)), options_.generator);
  };
  const Split by_expert{group, 0, experts};
  router = register_parameter("router", draw({experts, width}, width));
  up = register_split("up", draw({experts, hidden, width}, width), by_expert);
  up_bias = register_split("up_bias", draw({experts, hidden}, width), by_expert);
  down = register_split("down", draw({experts, width, hidden}, hidden), by_expert);
  down_bias = register_split("down_bias", draw({experts, width}, hidden), by_expert);
  if (options_.average_gradients)
    for (const at::Tensor& each : {up, up_bias, down, down_bias})
      each.register_hook([ranks = group.size()](const at::Tensor& gradient) { return gradient / ranks; });
}

// The experts that the tokens of this rank have selected. A choice is a token and one of its experts.
struct MixtureOfExpertsImpl::Route {
  at::Tensor tokens, weights;  // of the choices that are sent, by expert
  at::Tensor sent, selected;   // by expert, on the host: choices that are sent, and all
};

MixtureOfExpertsImpl::Route MixtureOfExpertsImpl::route(const at::Tensor& probabilities) const {
  const std::int64_t tokens = probabilities.size(0), experts = options_.experts;
  const auto [top, indices] = probabilities.topk(options_.top_k, -1);
  const at::Tensor normalized = options_.normalize ? top / top.sum(-1, true) : top;
  // First choices of all tokens, then second ones.
  const at::Tensor chosen = indices.t().reshape(-1), weights = normalized.t().reshape(-1);
  at::Tensor order = chosen.argsort(/*stable=*/true);
  Route result;
  result.selected = at::bincount(chosen, {}, experts).cpu();
  result.sent = result.selected;
  if (options_.capacity_factor) {
    const auto capacity = static_cast<std::int64_t>(
        std::ceil(*options_.capacity_factor * static_cast<double>(tokens * options_.top_k) /
                  static_cast<double>(experts)));
    result.sent = result.selected.clamp_max(capacity);
    std::vector<at::Tensor> kept;
    std::int64_t begin = 0;
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      kept.push_back(order.narrow(0, begin, result.sent[expert].item<std::int64_t>()));
      begin += result.selected[expert].item<std::int64_t>();
    }
    order = at::cat(kept);
  }
  result.tokens = order.remainder(std::max<std::int64_t>(tokens, 1));
  result.weights = weights.index_select(0, order);
  return result;
}

// rows: those of the first sender by expert, then of the next sender. counts: [ranks, experts of this rank].
at::Tensor MixtureOfExpertsImpl::run_experts(const at::Tensor& rows, const at::Tensor& counts) const {
  const std::int64_t local = up.size(0);
  const at::Tensor expert_of_row =
      at::repeat_interleave(at::arange(local).repeat({counts.size(0)}), counts.reshape(-1));
  const at::Tensor order = expert_of_row.argsort(/*stable=*/true);
  const at::Tensor totals = counts.sum(0).contiguous();
  const auto parts =
      rows.index_select(0, order.to(rows.device()))
          .split_with_sizes({totals.data_ptr<std::int64_t>(), static_cast<std::size_t>(local)});
  std::vector<at::Tensor> outputs;
  for (std::int64_t i = 0; i < local; ++i) {
    const at::Tensor hidden = at::gelu(at::linear(parts[static_cast<std::size_t>(i)], up[i], up_bias[i]));
    outputs.push_back(at::linear(hidden, down[i], down_bias[i]));
  }
  return at::cat(outputs).index_select(0, order.argsort().to(rows.device()));
}

MixtureOfExpertsImpl::Output MixtureOfExpertsImpl::forward(const at::Tensor& input) {
  if (input.size(-1) != router.size(1))
    refuse("MixtureOfExperts", "the input has " + std::to_string(input.size(-1)) + " features, expected " +
                                   std::to_string(router.size(1)));
  const at::Tensor rows = input.reshape({-1, input.size(-1)});
  const at::Tensor probabilities = at::linear(rows, router).softmax(-1);
  const Route own = route(probabilities);

  const std::int64_t ranks = group_.size(), experts = options_.experts, local = up.size(0);
  const at::Tensor all = at::empty({ranks, 2, experts}, at::kLong);
  group_.wait(group_.inlined().all_gather(all, at::stack({own.sent, own.selected})));
  const at::Tensor here = all.select(1, 0).narrow(1, group_.rank() * local, local);
  const auto counts = [](const at::Tensor& tensor) {
    const at::Tensor flat = tensor.contiguous();
    return std::vector<std::int64_t>(flat.data_ptr<std::int64_t>(),
                                     flat.data_ptr<std::int64_t>() + flat.numel());
  };
  const auto sent = counts(own.sent.view({ranks, local}).sum(1)), received = counts(here.sum(1));

  namespace f = collectives::functional;
  const at::Tensor arrived = f::all_to_all_v(group_, rows.index_select(0, own.tokens), sent, received);
  const at::Tensor returned = f::all_to_all_v(group_, run_experts(arrived, here), received, sent);
  const at::Tensor output =
      at::zeros(rows.sizes(), returned.options())
          .index_add(0, own.tokens, returned * own.weights.unsqueeze(1).to(returned.scalar_type()));

  // Counts have no exact value in a type of 16 bits.
  const auto wide = probabilities.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor selected = all.select(1, 1).sum(0).to(probabilities.options().dtype(wide));
  const at::Tensor fractions = selected / selected.sum().clamp_min(1);
  const at::Tensor mean = probabilities.to(wide).sum(0) / std::max<std::int64_t>(rows.size(0), 1);
  return {output.view(input.sizes()), experts * (fractions * mean).sum()};
}

void MixtureOfExpertsImpl::pretty_print(std::ostream& stream) const {
  stream << "weft::tensor_parallel::MixtureOfExperts(" << router.size(1) << ", experts=" << options_.experts
         << ", top_k=" << options_.top_k << ", ranks=" << group_.size() << ")";
}

}  // namespace weft::tensor_parallel
