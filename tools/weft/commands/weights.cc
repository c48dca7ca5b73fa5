#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "tools/weft/command.h"

namespace weft::tool {
namespace weights_command {
namespace {

// Replaces this program by weft-weights, which is next to it and needs LibTorch.
Exit run(const CLI::App& app) {
  const std::string program =
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "weft-weights").string();
  std::vector<std::string> words{program};
  for (const std::string& word : app.remaining()) words.push_back(word);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execv(program.c_str(), arguments.data());
  throw UsageError("weights: cannot run " + program + ": " + std::strerror(errno) +
                   "; it is built and installed where LibTorch is");
}

}  // namespace
}  // namespace weights_command

Command add_weights(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "weights",
      "List or convert a file of tensors: safetensors, of torch.save(), a checkpoint; calls no agent");
  app->prefix_command();
  app->set_help_flag();
  return {app, [app] { return weights_command::run(*app); }};
}

}  // namespace weft::tool
