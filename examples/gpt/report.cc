#include "gpt/report.h"

#include <fmt/format.h>
#include <weft/parallel/partition/profile_text.h>
#include <weft/parallel/pipeline/profiler.h>
#include <weft/parallel/schedule/draw.h>
#include <weft/parallel/schedule/measured_costs.h>
#include <weft/parallel/tensor_parallel/conjugates.h>

#include <algorithm>
#include <iterator>

using namespace weft;

namespace {

// Replaces the bytes that a terminal does not show by '?'.
std::string readable(std::string text) {
  for (char& c : text)
    if (c != '\n' && (c < ' ' || c > '~')) c = '?';
  return text;
}

}  // namespace

void write_profile(const pipeline::LayerGraph& layers, const Settings& settings) {
  const at::Tensor microbatch =
      at::zeros({settings.batch_size / settings.microbatches, settings.model.context}, at::kLong);
  using Activations = pipeline::ProfileOptions::Activations;
  for (const auto& [file, activations] : {std::pair{settings.profile, Activations::outputs},
                                          std::pair{settings.profile + ".kept", Activations::kept}})
    write_file(file, partition::to_text(pipeline::profile(layers, {microbatch},
                                                          {.rounds = 20, .activations = activations})));
}

double median_step(const std::vector<Point>& points) {
  std::vector<double> seconds;
  for (std::size_t i = 1; i < points.size(); ++i)
    seconds.push_back(points[i].seconds - points[i - 1].seconds);
  const auto middle = seconds.begin() + std::ssize(seconds) / 2;
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

double held_out_loss(pipeline::GroupPipeline& model, const collectives::DeviceMesh& mesh, const Text& text,
                     const Settings& settings) {
  const torch::NoGradGuard no_grad;
  const auto loss_of = gpt_loss(mesh.group("tensor"));
  at::Tensor sum = at::zeros({2}, at::kDouble);  // the sums of losses and of bytes
  for (const Batch& batch : text.held_out_batches(settings.batch_size)) {
    const pipeline::Values logits = model.evaluate({batch.bytes});
    if (logits.empty()) continue;  // another rank has the last stage
    const auto bytes = static_cast<double>(batch.following.numel());
    sum += at::tensor({bytes * loss_of(logits, {batch.following}).item<double>(), bytes}, at::kDouble);
  }
  mesh.group("pipeline").all_reduce(sum).get();
  return (sum[0] / sum[1]).item<double>();
}

std::string sample(pipeline::GroupPipeline& model, const collectives::DeviceMesh& mesh, const Text& text,
                   const Settings& settings) {
  const torch::NoGradGuard no_grad;
  const int last = model.schedule().rank_of(model.graph().size() - 1, 0);
  at::Generator generator = at::detail::createCPUGenerator(settings.seed);  // the same on all ranks
  std::string written(text.held_out().substr(0, 20));
  while (static_cast<std::int64_t>(written.size()) < settings.sampled) {
    const auto seen = std::min(std::ssize(written), settings.model.context);
    const pipeline::Values logits = model.evaluate({bytes_of(written).slice(1, -seen)});
    at::Tensor next = at::empty({1}, at::kLong);
    if (!logits.empty()) {
      const at::Tensor all = tensor_parallel::gather_from_ranks(mesh.group("tensor"), logits[0][0][-1]);
      next = at::softmax(all, 0).multinomial(1, false, generator);
    }
    mesh.group("pipeline").broadcast(next, last).get();
    written += static_cast<char>(next.item<std::int64_t>());
  }
  return readable(written);
}

std::string title_of(const Settings& settings) {
  return fmt::format("GPT: data {} x pipeline {} x tensor {}", settings.data, settings.pipeline,
                     settings.tensor);
}

void draw(const schedule::Schedule& schedule, const schedule::Timeline& measured, const Settings& settings) {
  const auto predicted = schedule::predict(schedule, schedule::measured_costs(schedule, {&measured, 1}));
  write_file(
      settings.out + "/timeline.svg",
      schedule::svg(schedule, {{"measured: the last step", measured},
                               {"predicted from the measured costs of the stages", predicted.timeline}}));
  double end = 0;
  for (const auto& spans : measured.ranks)
    for (const schedule::Span& span : spans) end = std::max(end, span.finish);
  fmt::print("the last step took {:.3f} s, predicted {:.3f} s; drawn in {}/timeline.svg\n", end,
             predicted.time, settings.out);
}
