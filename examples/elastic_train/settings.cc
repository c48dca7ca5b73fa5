#include "elastic_train/settings.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  CLI::App app{
      "Trains a small network on Fashion-MNIST with workers that join and leave.\n"
      "Without a launcher it starts `weft launch --min 2 --max 4` of itself, and a storm: it kills, stops, "
      "adds and "
      "removes workers. Under `weft launch` it is one of the workers."};
  app.add_option("--epochs", settings.epochs)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch-size", settings.batch_size,
                 "of all workers together, so that the training does not depend on their number")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--images", settings.images, "number of training images")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--learning-rate", settings.learning_rate,
                 "the learning rate at the beginning; it falls to 0")
      ->capture_default_str();
  app.add_option("--seed", settings.seed, "of the parameters and the order of images")->capture_default_str();
  app.add_option("--threads", settings.threads, "threads within an operation, in each process")
      ->capture_default_str();
  app.add_flag("--float64", settings.float64, "Compute in float64 instead of float32");
  app.add_option("--data", settings.data,
                 "folder of the data set, if it is not where Debian's package puts it");
  app.add_option("--out", settings.out, "folder for the picture and the table of the losses")
      ->capture_default_str();
  app.add_option("--log", settings.log,
                 "folder for a file of each worker: the images and the loss of each of its steps");
  app.add_option("--checkpoint", settings.checkpoint,
                 "folder, shared by all workers: saved to when workers are stopped, and resumed from");
  const char* const storm = "The storm, without a launcher";
  app.add_option("--storm", settings.storm, "seed of the storm")->capture_default_str()->group(storm);
  app.add_option("--changes", settings.changes, "number of changes; 0: nothing disturbs the training")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(storm);
  app.add_option("--weft", settings.weft,
                 "the program weft (../bin/weft of this program's folder, or in PATH)")
      ->group(storm);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}
