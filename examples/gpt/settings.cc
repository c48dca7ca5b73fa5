#include "gpt/settings.h"

#include <fmt/format.h>
#include <weft/parallel/schedule/generators.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <map>
#include <stdexcept>

#include "gpt/text.h"

namespace {

void expect_divides(std::int64_t parts, const std::string& of_what, std::int64_t size,
                    const std::string& things) {
  if (size % parts != 0)
    throw std::invalid_argument(fmt::format("{} {} cannot be split over {} {}: expected a multiple of {}",
                                            size, things, parts, of_what, parts));
}

}  // namespace

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  std::size_t processes = 0;
  CLI::App app{
      "Trains a GPT on the bytes of a text: data x pipeline x tensor parallel.\n"
      "Without a launcher it starts its ranks on this machine: -n N, or as many as the "
      "dimensions have. It also runs under weft launch, torchrun, mpirun and srun."};
  const auto count = [&](const std::string& name, auto& value, const std::string& description) {
    app.add_option(name, value, description)->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("-n", processes, "Number of ranks to start on this machine");
  app.add_option("--data", settings.data,
                 "Data parallel ranks (default: all that the other dimensions leave)")
      ->check(CLI::PositiveNumber);
  count("--pipeline", settings.pipeline, "Pipeline ranks, each with a part of the blocks");
  count("--tensor", settings.tensor, "Tensor parallel ranks, each with a part of every block");
  app.add_option("--mesh", settings.mesh, "Order of the dimensions, the outermost one first")
      ->delimiter(',')
      ->expected(3)
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--schedule", settings.schedule, "Schedule of the pipeline, as `weft schedule --type`")
      ->capture_default_str();
  app.add_option("--chunks", settings.chunks, "Stages on each rank (default: as few as the schedule has)")
      ->check(CLI::PositiveNumber);
  app.add_option("--cut", settings.cut,
                 "Layers at which stages begin, as `weft plan` prints them (default: equally many blocks)")
      ->delimiter(',')
      ->type_name("LAYER[,LAYER...]")
      ->allow_extra_args(false);
  count("--microbatches", settings.microbatches, "Micro-batches of each pipeline in a step");
  count("--width", settings.model.width, "Width of the model");
  count("--heads", settings.model.heads, "Attention heads");
  count("--blocks", settings.model.blocks, "Transformer blocks");
  count("--context", settings.model.context, "Bytes that the model sees at once");
  count("--batch-size", settings.batch_size, "Rows of a batch, over all ranks");
  count("--steps", settings.steps, "Optimizer steps");
  app.add_option("--learning-rate", settings.learning_rate, "Peak learning rate of the cosine schedule")
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "Seed of the initial values and the batches")
      ->capture_default_str();
  count("--threads", settings.threads, "Threads within an operation, in each process");
  app.add_flag("--float64", settings.float64, "Compute in float64 instead of float32");
  app.add_option("--text", settings.text, "Text to learn from (default: one that a Debian package installs)")
      ->check(CLI::ExistingFile);
  count("--sample", settings.sampled, "Bytes to write at the end");
  app.add_option("--out", settings.out, "Folder for the loss curve and the timeline")->capture_default_str();
  app.add_option("--profile", settings.profile,
                 "Write the costs of the layers into this file, for `weft plan`, instead of training");
  app.add_option("--checkpoint", settings.checkpoint,
                 "Folder to save to and to resume from, also with other splits; shared by all ranks");
  count("--checkpoint-every", settings.checkpoint_every, "Steps between two checkpoints");
  try {
    app.parse(argc, argv);
    if (auto names = settings.mesh;
        std::ranges::sort(names), names != std::vector<std::string>{"data", "pipeline", "tensor"})
      throw CLI::ValidationError("--mesh", "expected data, pipeline and tensor in any order");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  if (settings.text.empty()) settings.text = Text::default_path();
  return settings;
}

std::vector<weft::collectives::DeviceMesh::Dimension> dimensions_of(const Settings& settings) {
  const std::map<std::string, int> sizes{
      {"data", settings.data}, {"pipeline", settings.pipeline}, {"tensor", settings.tensor}};
  std::vector<weft::collectives::DeviceMesh::Dimension> dimensions;
  for (const std::string& name : settings.mesh) dimensions.push_back({name, sizes.at(name)});
  return dimensions;
}

weft::schedule::Schedule schedule_of(const Settings& settings) {
  return weft::schedule::generate(
      settings.schedule,
      {.ranks = settings.pipeline, .microbatches = settings.microbatches, .chunks = settings.chunks});
}

Settings fitted(Settings settings, int ranks) {
  const int split = settings.pipeline * settings.tensor;
  if (settings.data == 0) {
    expect_divides(split, fmt::format("(pipeline {} x tensor {})", settings.pipeline, settings.tensor), ranks,
                   "ranks");
    settings.data = ranks / split;
  }
  if (!settings.profile.empty() && ranks > 1)
    throw std::invalid_argument(fmt::format("--profile: {} ranks, expected one process", ranks));
  if (settings.processes() != ranks)
    throw std::invalid_argument(
        fmt::format("data {} x pipeline {} x tensor {} needs {} ranks, and the job has {}: start it with -n "
                    "{}, or change --data",
                    settings.data, settings.pipeline, settings.tensor, settings.processes(), ranks,
                    settings.processes()));
  const int stages = schedule_of(settings).stages();
  if (settings.cut.empty())
    expect_divides(stages, "stages", settings.model.blocks, "blocks");
  else if (std::ssize(settings.cut) != stages - 1)
    throw std::invalid_argument(
        fmt::format("--cut has {} layers: expected {}, the first one of each stage after the first stage",
                    settings.cut.size(), stages - 1));
  expect_divides(settings.model.heads, "heads", settings.model.width, "features");
  expect_divides(settings.tensor, "tensor parallel ranks", settings.model.heads, "heads");
  expect_divides(settings.data * settings.microbatches,
                 fmt::format("(data {} x micro-batches {})", settings.data, settings.microbatches),
                 settings.batch_size, "rows of a batch");
  return settings;
}
