#include "llama/settings.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <stdexcept>

namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::invalid_argument(what);
}

}  // namespace

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  std::size_t processes = 0;
  CLI::App app{
      "Runs and fine-tunes models of the Llama family, from a folder as Hugging Face publishes it:\n"
      "config.json, tokenizer.json and safetensors. Without a launcher it starts its ranks on this\n"
      "machine: -n N, or as many as the dimensions have. It also runs under weft launch, torchrun,\n"
      "mpirun and srun."};
  app.require_subcommand(1)->fallthrough();
  const auto count = [](CLI::App& to, const std::string& name, auto& value, const std::string& description) {
    to.add_option(name, value, description)->check(CLI::PositiveNumber)->capture_default_str();
  };
  const auto command = [&](const std::string& name, const std::string& description) {
    CLI::App& added = *app.add_subcommand(name, description);
    added.callback([&settings, name] { settings.command = name; });
    added.footer("llama --help lists the options of all commands: ranks, threads and seed.");
    added.add_option("FOLDER", settings.model, "Folder of the model")
        ->required()
        ->check(CLI::ExistingDirectory);
    return &added;
  };
  app.add_option("-n", processes, "Number of ranks to start on this machine");
  count(app, "--tensor", settings.tensor, "Tensor parallel ranks, each with a part of every layer");
  count(app, "--threads", settings.threads, "Threads within an operation, in each process");
  app.add_option("--seed", settings.seed, "Seed of the sampling and of the batches")->capture_default_str();

  CLI::App& generate = *command("generate", "Continues a text");
  generate.add_option("--prompt", settings.prompt, "Text to continue")->required();
  count(generate, "--tokens", settings.tokens, "Tokens to generate, at most");
  generate.add_option("--temperature", settings.temperature, "0: the most probable token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  generate.add_flag("--ids", settings.ids, "Print the numbers of the tokens instead of the text");
  generate.add_option("--logits", settings.logits,
                      "Write the prompt's tokens and their logits into this file, x.safetensors");

  CLI::App& train = *command("train", "Fine-tunes the model on a text with AdamW");
  train.add_option("TEXT", settings.text, "File to learn from")->required()->check(CLI::ExistingFile);
  train.add_option("--out", settings.out, "Folder for the new model and the loss curve")->required();
  train
      .add_option("--data", settings.data,
                  "Data parallel ranks, which split the training state (default: all that the other\n"
                  "dimensions leave)")
      ->check(CLI::PositiveNumber);
  count(train, "--pipeline", settings.pipeline, "Pipeline ranks, each with a part of the layers");
  train.add_option("--schedule", settings.schedule, "Schedule of the pipeline, as `weft schedule --type`")
      ->capture_default_str();
  train
      .add_option("--microbatches", settings.microbatches,
                  "Parts of a batch that are computed one after another (default: one for each pipeline\n"
                  "rank)")
      ->check(CLI::PositiveNumber);
  count(train, "--context", settings.context, "Tokens that the model sees at once");
  count(train, "--batch-size", settings.batch_size, "Rows of a batch, over all ranks");
  train.add_option("--steps", settings.steps, "Optimizer steps (default: each part of the text once)")
      ->check(CLI::PositiveNumber);
  count(train, "--learning-rate", settings.learning_rate, "Peak learning rate of the cosine schedule");
  train.add_option("--weight-decay", settings.weight_decay, "Weight decay of AdamW")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  count(train, "--clip", settings.clip, "Largest norm of the gradients");
  train.add_flag("--bf16", settings.bfloat16,
                 "Compute in bfloat16; parameters, reductions, optimizer and loss stay in float32");

  CLI::App& tokens = *command("tokens", "Prints the tokens of a text");
  tokens.add_option("TEXT", settings.text, "File")->required()->check(CLI::ExistingFile);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (settings.command == "generate") settings.data = 1;
  return settings;
}

Settings fitted(Settings settings, const Config& config, int ranks) {
  const int split = settings.pipeline * settings.tensor;
  if (settings.data == 0) {
    expect(ranks % split == 0,
           fmt::format("{} ranks cannot be split over pipeline {} x tensor {}: expected a multiple of {}",
                       ranks, settings.pipeline, settings.tensor, split));
    settings.data = ranks / split;
  }
  if (settings.microbatches == 0) settings.microbatches = settings.pipeline;
  expect(settings.processes() == ranks,
         fmt::format("data {} x pipeline {} x tensor {} needs {} ranks, and the job has {}: start it with -n "
                     "{}, or change the dimensions",
                     settings.data, settings.pipeline, settings.tensor, settings.processes(), ranks,
                     settings.processes()));
  const int tensor = settings.tensor;
  expect(config.heads % tensor == 0 && config.hidden % tensor == 0,
         fmt::format("{} heads and {} hidden features cannot be split over {} tensor parallel ranks",
                     config.heads, config.hidden, tensor));
  expect(config.key_value_heads % tensor == 0 || tensor % config.key_value_heads == 0,
         fmt::format("{} heads of keys and values cannot be split over {} tensor parallel ranks: expected "
                     "that one number divides the other",
                     config.key_value_heads, tensor));
  expect(
      settings.batch_size % (settings.data * settings.microbatches) == 0,
      fmt::format("{} rows of a batch cannot be split over data {} x micro-batches {}: expected a multiple "
                  "of {}",
                  settings.batch_size, settings.data, settings.microbatches,
                  settings.data * settings.microbatches));
  return settings;
}
