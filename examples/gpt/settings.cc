#include "gpt/settings.h"

#include <fmt/format.h>
#include <weft/parallel/schedule/generators.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <stdexcept>

#include "gpt/text.h"

namespace {

void expect_divides(std::int64_t parts, const std::string& of_what, std::int64_t size,
                    const std::string& things) {
  if (size % parts != 0)
    throw std::invalid_argument(
        fmt::format("{} {} cannot be split over {} {}: expected a multiple", size, things, parts, of_what));
}

}  // namespace

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  std::size_t processes = 0;
  CLI::App app{
      "Trains a GPT on the bytes of a text: data x pipeline x tensor parallel.\n"
      "Without a launcher it starts its ranks on this machine: -n N as the first option, or as many as the "
      "dimensions have. It also runs under weft launch, torchrun, mpirun and srun."};
  const auto count = [&](const std::string& name, auto& value, const std::string& description) {
    app.add_option(name, value, description)->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("-n", processes, "ranks to start on this machine");
  app.add_option("--data", settings.data, "ranks with other rows of a batch (default: all that are left)")
      ->check(CLI::PositiveNumber);
  count("--pipeline", settings.pipeline, "ranks with other blocks of the model");
  count("--tensor", settings.tensor, "ranks with other heads and hidden features of each block");
  app.add_option("--schedule", settings.schedule, "of the pipeline, as `weft schedule --type`")
      ->capture_default_str();
  count("--microbatches", settings.microbatches, "parts of a batch in each pipeline");
  count("--width", settings.model.width, "features between the blocks");
  count("--heads", settings.model.heads, "of attention");
  count("--blocks", settings.model.blocks, "of the model");
  count("--context", settings.model.context, "bytes that the model sees at once");
  count("--batch-size", settings.batch_size, "rows of all ranks together");
  count("--steps", settings.steps, "of the optimizer");
  app.add_option("--learning-rate", settings.learning_rate, "the highest, of a cycle")->capture_default_str();
  app.add_option("--seed", settings.seed)->capture_default_str();
  count("--threads", settings.threads, "threads within an operation, in each process");
  app.add_flag("--float64", settings.float64, "compute in float64 instead of float32");
  app.add_option("--text", settings.text, "file to learn from, if not one of Debian's")
      ->check(CLI::ExistingFile);
  count("--sample", settings.sampled, "bytes to write at the end");
  app.add_option("--out", settings.out, "folder for the loss curve and the timeline")->capture_default_str();
  app.add_option("--checkpoint", settings.checkpoint,
                 "folder to save to and to resume from, also with other splits; shared by all ranks");
  count("--checkpoint-every", settings.checkpoint_every, "steps");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (settings.text.empty()) settings.text = Text::default_path();
  return settings;
}

Settings fitted(Settings settings, int ranks) {
  const int split = settings.pipeline * settings.tensor;
  if (settings.data == 0) {
    expect_divides(split, fmt::format("(pipeline {} x tensor {})", settings.pipeline, settings.tensor), ranks,
                   "ranks");
    settings.data = ranks / split;
  }
  if (settings.processes() != ranks)
    throw std::invalid_argument(
        fmt::format("data {} x pipeline {} x tensor {} are {} ranks, and there are {}: start as many",
                    settings.data, settings.pipeline, settings.tensor, settings.processes(), ranks));
  const auto stages = weft::schedule::generate(settings.schedule, {.ranks = settings.pipeline,
                                                                   .microbatches = settings.microbatches})
                          .stages();
  expect_divides(stages, "stages", settings.model.blocks, "blocks");
  expect_divides(settings.model.heads, "heads", settings.model.width, "features");
  expect_divides(settings.tensor, "tensor parallel ranks", settings.model.heads, "heads");
  expect_divides(settings.data * settings.microbatches,
                 fmt::format("(data {} x micro-batches {})", settings.data, settings.microbatches),
                 settings.batch_size, "rows of a batch");
  return settings;
}
