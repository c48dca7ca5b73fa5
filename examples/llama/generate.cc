#include "llama/generate.h"

#include <fmt/ranges.h>
#include <weft/parallel/sharded/checkpoint/weights.h>
#include <weft/parallel/sharded/training_state.h>
#include <weft/parallel/tensor_parallel/conjugates.h>
#include <weft/parallel/weights/deferred.h>
#include <weft/parallel/weights/sink.h>

#include <algorithm>
#include <cstdio>

#include "llama/model.h"
#include "llama/tokenizer.h"

using namespace weft;

namespace {

// The logits of all ranks' columns.
at::Tensor all_logits(Llama& model, const collectives::Group& tensor, const at::Tensor& features) {
  return tensor_parallel::gather_from_ranks(tensor, model.logits(features));
}

void write_logits(const at::Tensor& tokens, const at::Tensor& logits, const std::string& path) {
  const std::map<std::string, at::Tensor> tensors{{"tokens", tokens}, {"logits", logits.contiguous()}};
  const auto sink = weights::create_sink(path);
  sink->declare(weights::forms_of(tensors));
  for (const auto& [name, values] : tensors) sink->write(name, values);
  sink->finish();
}

}  // namespace

void generate(rpc::Agent& agent, const Settings& wanted) {
  const torch::NoGradGuard no_grad;
  const auto tensor = collectives::Group::create(agent).get();
  const Config config = read_config(wanted.model);
  const Settings settings = fitted(wanted, config, tensor.size());
  const Tokenizer tokenizer(settings.model);
  const auto [llama, values] = weights::deferred([&] { return std::make_shared<Llama>(tensor, config); });
  Llama& model = *llama;
  values->materialize(model, /*initialize=*/false);
  sharded::SlicedState state;
  sharded::add_module(state, model, /*prefix=*/"");
  sharded::load_weights(tensor, state, settings.model, {.names = names_in_model(config), .convert = true});

  std::vector<std::int64_t> tokens = tokenizer.encode(settings.prompt);
  if (tokens.empty()) throw std::runtime_error("--prompt has no tokens: expected at least one");
  if (!settings.logits.empty()) {
    const at::Tensor prompt = at::tensor(tokens);
    const at::Tensor logits = all_logits(model, tensor, model.features(prompt.unsqueeze(0)))[0];
    if (tensor.rank() == 0) write_logits(prompt, logits, settings.logits);
  }

  const auto print = [&](const std::vector<std::int64_t>& more) {
    if (tensor.rank() != 0) return;
    if (settings.ids)
      fmt::print("{} ", fmt::join(more, " "));
    else
      fmt::print("{}", tokenizer.decode(more));
    std::fflush(stdout);
  };
  print(tokens);
  at::Generator generator = at::detail::createCPUGenerator(settings.seed);  // the same on all ranks
  std::vector<Seen> seen(model.layers.size());
  for (std::int64_t i = 0; i < settings.tokens; ++i) {
    const at::Tensor features = model.features(at::tensor(tokens).unsqueeze(0), &seen);
    const at::Tensor logits = all_logits(model, tensor, features.select(1, -1))[0];
    const at::Tensor next =
        settings.temperature > 0
            ? at::softmax(logits / settings.temperature, 0).multinomial(1, false, generator)
            : logits.argmax();
    tokens = {next.item<std::int64_t>()};  // the model has seen the others
    if (std::ranges::count(config.end_tokens, tokens[0]) > 0) break;
    print(tokens);
  }
  if (tensor.rank() == 0) fmt::print("\n");
}
