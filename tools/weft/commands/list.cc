#include <algorithm>
#include <cstdio>

#include "tools/weft/command.h"
#include "tools/weft/json_text.h"
#include "tools/weft/method.h"

namespace weft::tool {
namespace list_command {
namespace {

struct Options : AskedAgent {
  std::string pattern;
  bool json = false;
};

void print_json(const std::vector<Method>& methods) {
  PrintedJson json = PrintedJson::array();
  for (const Method& method : methods) json.push_back(json_of_fields(method.info));
  std::puts((stdout_is_terminal() ? on_lines(json, terminal_width()) : on_one_line(json)).c_str());
}

void print_table(const std::vector<Method>& methods) {
  std::size_t width = 0;
  for (const Method& method : methods) width = std::max(width, method.info.name.size());
  width = std::min<std::size_t>(width, 40);
  for (const Method& method : methods) {
    std::string line = printable(method.info.name);
    if (line.size() < width) line.resize(width, ' ');
    line += "  " + method.signature();
    if (method.info.idempotent) line += "  idempotent";
    if (method.info.on_object) line += "  on an object";
    std::puts(line.c_str());
  }
  const auto structs = struct_texts(methods);
  if (!structs.empty()) std::puts("");
  for (const std::string& text : structs) std::puts(text.c_str());
}

Exit run(Options& options) {
  Client& client = options.connect();
  std::vector<Method> methods;
  for (rpc::MethodInfo& info : rpc::list_methods(client.peer()).get())
    if (matches(info.name, options.pattern)) methods.emplace_back(std::move(info));
  if (options.json) {
    print_json(methods);
  } else {
    print_table(methods);
  }
  if (methods.empty() && !options.json)
    std::fprintf(stderr, "weft: no method matches '%s'\n", options.pattern.c_str());
  return methods.empty() ? Exit::failed : Exit::ok;
}

}  // namespace
}  // namespace list_command

Command add_list(CLI::App& program) {
  using namespace list_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("list", "The methods that an agent serves, and their types");
  options->add_to(*app);
  app->add_option("PATTERN", options->pattern,
                  "Only methods that match: a part of the name, or a pattern such as 'market.*'");
  app->add_flag("--json", options->json, "Print a JSON list of objects");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
