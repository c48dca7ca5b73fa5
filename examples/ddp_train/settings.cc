#include "ddp_train/settings.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  std::size_t processes = 0;
  CLI::App app{
      "Trains a ResNet-18 on Fashion-MNIST, data parallel.\n"
      "Without a launcher it starts its ranks on this machine: -n N. It also runs under "
      "weft launch, torchrun, mpirun and srun."};
  app.add_option("-n", processes, "ranks to start on this machine");
  app.add_option("--epochs", settings.epochs)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "of each rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--images", settings.images, "number of training images, over all ranks")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--width", settings.width, "channels of the first stage; 64 in the paper")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--learning-rate", settings.learning_rate, "the highest learning rate of the cycle")
      ->capture_default_str();
  app.add_option("--seed", settings.seed)->capture_default_str();
  app.add_option("--threads", settings.threads, "threads within an operation, in each process")
      ->capture_default_str();
  app.add_flag("--compress", settings.compress, "send gradients as bfloat16");
  app.add_flag("--uneven", settings.uneven, "give the ranks different numbers of batches");
  app.add_flag("--group-norm", settings.group_norm,
               "normalize within each image, so that losses do not depend on the number of ranks");
  app.add_option(
         "--shard", settings.shard,
         "split over the ranks: the optimizer's state (zero1), gradients too (zero2), parameters too (zero3)")
      ->check(CLI::IsMember({"zero1", "zero2", "zero3"}));
  app.add_option("--data", settings.data,
                 "folder of the data set, if it is not where Debian's package puts it");
  app.add_option("--out", settings.out, "folder for the loss curve")->capture_default_str();
  app.add_option("--checkpoint", settings.checkpoint,
                 "folder to save to and to resume from; shared by all ranks");
  app.add_option("--checkpoint-every", settings.checkpoint_every, "steps, a multiple of 10")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    if (!settings.shard.empty() && (settings.compress || settings.uneven))
      throw CLI::ValidationError("--shard", "excludes --compress and --uneven");
    if (!settings.checkpoint.empty() && settings.uneven)
      throw CLI::ValidationError("--checkpoint", "excludes --uneven: the ranks have to be at one step");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}
