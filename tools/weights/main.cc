// weft-weights: lists and converts files of tensors. `weft weights` runs it; it is a separate program
// because it needs LibTorch. docs/weft_tool.md
#ifdef WEFT_HAS_CHECKPOINTS
#include <weft/parallel/sharded/checkpoint/open_checkpoint.h>
#endif
#include <weft/parallel/weights/sink.h>
#include <weft/parallel/weights/source.h>
#include <weft/rpc/tensor/dtype.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tools/weft/bytes.h"
#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"

using namespace weft;
using tool::Exit;

namespace {

struct Options {
  std::string file, from, to, dtype, max_shard = "5GB";
  std::vector<std::string> prefixes;
  bool notes = false, no_checksums = false;
};

// A text of the file, which must not look like another line.
std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char each : tool::printable(text))
    line += each == '\n' ? std::string("\\n") : std::string(1, each);
  return line;
}

std::shared_ptr<weights::Source> open(const std::string& path, weights::OpenOptions options) {
#ifdef WEFT_HAS_CHECKPOINTS
  std::error_code ignored;
  if (!std::filesystem::exists(path + "/model.safetensors", ignored))  // which may have been exported there
    if (auto checkpoint = sharded::find_checkpoint(path)) return checkpoint;
#endif
  return weights::open_source(path, options);
}

void list(const Options& options) {
  const auto source = open(options.file, {.checksums = false});
  std::size_t width = 0;
  for (const auto& [name, form] : source->tensors()) width = std::max(width, on_one_line(name).size());
  double bytes = 0;
  for (const auto& [name, form] : source->tensors()) {
    const std::string text = weights::to_text(form);
    const std::size_t shape = text.find('[');
    std::printf("%-*s  %-13s  %-20s  %s\n", static_cast<int>(width), on_one_line(name).c_str(),
                text.substr(0, shape - 1).c_str(), text.substr(shape).c_str(),
                tool::bytes_text(static_cast<double>(form.bytes())).c_str());
    bytes += static_cast<double>(form.bytes());
  }
  std::printf("%zu tensors, %s\n", source->tensors().size(), tool::bytes_text(bytes).c_str());
  if (options.notes)
    for (const auto& [name, text] : source->notes())
      std::printf("%s = %s\n", on_one_line(name).c_str(), on_one_line(text).c_str());
}

void convert(const Options& options) {
  std::vector<std::pair<std::string, std::string>> prefixes;
  for (const std::string& each : options.prefixes) {
    const std::size_t at = each.find('=');
    if (at == std::string::npos) throw tool::UsageError("weights: --prefix " + each + ", expected FROM=TO");
    prefixes.emplace_back(each.substr(0, at), each.substr(at + 1));
  }
  weights::SaveOptions save;
  if (!prefixes.empty()) save.names = weights::prefixes(prefixes);
  if (!options.dtype.empty()) save.dtype = tensor::dtype_from_name(options.dtype);
  const auto source = open(options.from, {.checksums = !options.no_checksums});
  const auto sink = weights::create_sink(
      options.to, {.max_shard_bytes = static_cast<std::uint64_t>(tool::parse_bytes(options.max_shard))});
  weights::copy(*source, *sink, save);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App program(
      "List or convert a file of tensors: safetensors, an index of its shards, a file of torch.save(), or "
      "the "
      "folder of a checkpoint of torch.distributed.checkpoint or weft.",
      "weft weights");
  auto* file = program.add_option("FILE", options.file, "List its tensors: names, dtypes, shapes and sizes");
  program.add_flag("--notes", options.notes, "Also print what the file says in addition to tensors");
  CLI::App* app = program.add_subcommand(
      "convert", "Copy the tensors into a file of another format, without loading them all");
  app->add_option("FROM", options.from,
                  "A file, an index of shards, or a folder with one of them or with a checkpoint")
      ->required();
  app->add_option("TO", options.to,
                  "*.safetensors; *.pt, *.pth or *.bin; or a folder, for shards and their index")
      ->required();
  app->add_option("--dtype", options.dtype, "Of all floating-point tensors in TO: float32, bfloat16, ...")
      ->type_name("NAME");
  app->add_option("--prefix", options.prefixes, "Replace the prefix FROM of names by TO; the first that fits")
      ->type_name("FROM=TO");
  app->add_flag("--no-checksums", options.no_checksums,
                "Do not check the checksums of FROM, which torch.save() can leave out");
  app->add_option("--max-shard", options.max_shard, "The size of a shard in a folder")
      ->type_name("BYTES")
      ->capture_default_str();
  try {
    program.parse(argc, argv);
    if (!app->parsed() && file->count() == 0) throw CLI::RequiredError("FILE, or convert FROM TO,");
  } catch (const CLI::ParseError& error) {
    return program.exit(error) == 0 ? 0 : static_cast<int>(Exit::usage);
  }
  tool::Told told{Exit::ok, ""};
  try {
    app->parsed() ? convert(options) : list(options);
  } catch (...) {
    told = tool::tell(std::current_exception());
  }
  if (std::fflush(stdout) != 0 && told.exit == Exit::ok)
    told = {Exit::failed, "the output cannot be written"};
  if (!told.text.empty()) std::fprintf(stderr, "weft: %s\n", told.text.c_str());
  return static_cast<int>(told.exit);
}
