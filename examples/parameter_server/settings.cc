#include "parameter_server/settings.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <map>

namespace dist_optim = weft::dist_optim;

dist_optim::StepMode Settings::optimizer_mode() const {
  if (step_mode == "synchronous") return dist_optim::synchronous;
  if (step_mode == "hogwild") return dist_optim::hogwild;
  return dist_optim::bounded_staleness(staleness);
}

Settings parse_settings(int argc, char** argv) {
  Settings settings;
  std::string rank, world_size, master;
  bool insecure = false;

  CLI::App app{
      "Trains a small convolutional network on Fashion-MNIST with a parameter server.\n"
      "Without a launcher the program starts one server and its trainers on this machine. Under weft launch, "
      "torchrun, mpirun or srun,\n"
      "or with --rank, --world-size and --master, it is one of these processes: rank 0 serves, the others "
      "train."};
  const std::map<std::string, Mode> modes{{"autograd", Mode::autograd}, {"pull-push", Mode::pull_push}};
  app.add_option("--mode", settings.mode,
                 "autograd: forward through remote objects, backward through distributed autograd; "
                 "pull-push: trainers pull parameters and push gradients")
      ->transform(CLI::CheckedTransformer(modes));
  app.add_option("--mode-step", settings.step_mode,
                 "how trainers share the server's parameters (mode autograd)")
      ->check(CLI::IsMember({"synchronous", "bounded-staleness", "hogwild"}))
      ->capture_default_str();
  app.add_option("--staleness", settings.staleness,
                 "number of steps by which gradients may be late (bounded-staleness, pull-push)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--epochs", settings.epochs)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch-size", settings.batch_size)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--images", settings.images, "number of training images, over all trainers")
      ->check(CLI::Range(1, 60'000))
      ->capture_default_str();
  app.add_option("--test-images", settings.test_images, "for the accuracy")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  app.add_option("--learning-rate", settings.learning_rate, "learning rate of Adam at the beginning")
      ->capture_default_str();
  app.add_option("--seed", settings.seed)->capture_default_str();
  app.add_option("--threads", settings.threads, "threads within an operation, in each process")
      ->capture_default_str();
  app.add_option("--trainers", settings.trainers, "number of trainers to start on this machine")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--data", settings.data,
                 "folder of the data set, if it is not where Debian's package puts it");
  app.add_option("--out", settings.out, "folder for the loss curve")->capture_default_str();
  app.add_option("--checkpoint", settings.checkpoint,
                 "folder to save to and to resume from (mode autograd, synchronous)");
  app.add_option("--checkpoint-every", settings.checkpoint_every, "steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rank", rank, "this process's number: 0 serves");
  app.add_option("--world-size", world_size, "number of processes, including the server");
  app.add_option("--master", master, "ADDRESS:PORT of rank 0");
  app.add_flag("--insecure", insecure, "permit addresses beyond this host, without credentials");
  try {
    app.parse(argc, argv);
    if (!settings.checkpoint.empty() &&
        (settings.mode != Mode::autograd || settings.step_mode != "synchronous"))
      throw CLI::ValidationError("--checkpoint",
                                 "needs --mode autograd --mode-step synchronous: only in this mode "
                                 "are all trainers at one step");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }

  const auto set = [](const char* variable, const std::string& value) {
    if (!value.empty()) setenv(variable, value.c_str(), 1);
  };
  set("RANK", rank);
  set("WORLD_SIZE", world_size);
  if (const auto colon = master.rfind(':'); colon != std::string::npos) {
    set("MASTER_ADDR", master.substr(0, colon));
    set("MASTER_PORT", master.substr(colon + 1));
  }
  set("WEFT_INSECURE", insecure ? "1" : "");
  return settings;
}
