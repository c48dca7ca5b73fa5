#include <weft/rpc/endpoint/dynamic_call.h>
#include <weft/rpc/stream/stream.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "tools/weft/arguments.h"
#include "tools/weft/command.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_value.h"

namespace weft::tool {
namespace call_command {
namespace {

constexpr std::size_t shown_on_terminal = 100;  // elements of a tensor, bytes

struct Options : AskedAgent {
  std::string method;
  bool notify = false;
  std::uint64_t repeat = 1;
  std::vector<std::string> metadata;   // KEY=VALUE
  std::optional<std::uint64_t> items;  // the maximum number of items of a stream
  std::optional<std::uint64_t> most;   // the maximum number of elements to print; 0: all
  bool pretty = false, compact = false;
};

// CLI11 does not know the arguments as positionals (see arguments_in). This formatter adds them to the usage.
class UsageWithArguments : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    const std::size_t end = usage.find_last_not_of('\n');
    if (end != std::string::npos) usage.insert(end + 1, " [ARGUMENT...]");
    return usage;
  }
};

// The arguments are the words that CLI11 has not parsed. As positionals, CLI11 would split them: it would
// parse "[1,2]" as two values.
std::vector<GivenArgument> arguments_in(const std::vector<std::string>& words) {
  std::vector<GivenArgument> given;
  for (const std::string& word : words) {
    if (word == "-") {
      if (std::any_of(given.begin(), given.end(), [](const auto& one) { return one.from_stdin; }))
        throw UsageError("'-' is given twice, but there is one standard input");
      if (::isatty(STDIN_FILENO) != 0) std::fputs("weft: reading JSON from the terminal\n", stderr);
      given.push_back({std::string(std::istreambuf_iterator<char>(std::cin), {}), true});
      continue;
    }
    const bool number = word.size() > 1 && word[0] == '-' && word[1] >= '0' && word[1] <= '9';
    if (word.starts_with('-') && !number)
      throw UsageError("unknown option " + word + ": see weft call --help");
    given.push_back({word, false});
  }
  return given;
}

rpc::Metadata metadata_of(const Options& options) {
  rpc::Metadata metadata;
  for (const std::string& one : options.metadata) {
    const std::size_t sign = one.find('=');
    if (sign == 0 || sign == std::string::npos)
      throw UsageError("--metadata '" + one + "': expected KEY=VALUE");
    if (!metadata.emplace(one.substr(0, sign), one.substr(sign + 1)).second)
      throw UsageError("--metadata: the key '" + one.substr(0, sign) + "' is given twice");
  }
  return metadata;
}

// T, if the method returns stream<T>. nullopt: this program cannot parse T.
std::optional<ParsedType> item_type(const Method& method) {
  constexpr std::string_view open = "stream<";
  const std::string& text = method.info.result;
  try {
    return ParsedType::parse(text.substr(open.size(), text.size() - open.size() - 1));
  } catch (const rpc::Error&) {
    return std::nullopt;
  }
}

void print(const Options& options, const rpc::ValueReader& value, const Type* type) {
  const bool terminal = stdout_is_terminal();
  const std::uint64_t asked = options.most.value_or(terminal ? shown_on_terminal : 0);
  const auto most = asked == 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(asked);
  if (type != nullptr && type->kind == TypeKind::nothing && value.is_nil() && terminal) return;
  const PrintedJson json = json_of_value(value, type, most);
  const bool pretty = !options.compact && (options.pretty || terminal) && options.repeat == 1;
  std::puts((pretty ? on_lines(json, terminal ? terminal_width() : 80) : on_one_line(json)).c_str());
}

// Prints each item in the form of a result, until the stream ends or --items items are printed.
void print_items(const Options& options, const rpc::ValueReader& value, const Method& method) {
  rpc::DynamicStream stream(value);
  const auto type = item_type(method);
  for (std::uint64_t count = 0; !options.items || count < *options.items; ++count) {
    const auto item = stream.next().get();
    if (!item) return;
    print(options, item->value, type ? &**type : nullptr);
    std::fflush(stdout);
  }
}

// Prints the times of repeated calls to stderr, because their results are on stdout.
void print_times(std::vector<std::chrono::nanoseconds> times) {
  std::sort(times.begin(), times.end());
  std::chrono::nanoseconds sum{0};
  for (const auto& time : times) sum += time;
  std::fprintf(stderr, "%zu calls in %s: half of them within %s, 99%% within %s, the slowest took %s\n",
               times.size(), text_of(sum).c_str(), text_of(times[times.size() / 2]).c_str(),
               text_of(times[times.size() * 99 / 100]).c_str(), text_of(times.back()).c_str());
}

Exit run(Options& options, const std::vector<std::string>& words) {
  if (options.repeat == 0) throw UsageError("--repeat is 0, expected at least 1");
  const auto metadata = metadata_of(options);
  Client& client = options.connect();
  const auto given = arguments_in(words);
  client.restart();  // the time for reading standard input does not count
  const Method method(find_method(rpc::list_methods(client.peer()).get(), options.method));
  if (method.info.on_object)
    throw UsageError(
        method.info.name +
        " is a method of objects that peers create there and hold by RRefs: weft call has no RRef");
  const bool streams = method.info.result.starts_with("stream<");
  if (options.items && !streams)
    throw UsageError("--items is for methods that return a stream; " + method.info.name + " returns " +
                     method.info.result);
  const std::vector<PlainValue> arguments = arguments_of(method, given);

  std::vector<std::chrono::nanoseconds> times;
  for (std::uint64_t i = 0; i < options.repeat; ++i) {
    if (i != 0) client.restart();
    const auto began = rpc::Clock::now();
    const rpc::DynamicReply reply =
        rpc::call_by_name(client.peer().with_metadata(metadata), method.info.name, arguments.size(),
                          [&](rpc::OutgoingMessage& message) {
                            for (std::size_t j = 0; j < arguments.size(); ++j)
                              write(message.argument(j), arguments[j]);
                          },
                          {.signature = rpc::name_hash(method.info.signature), .notify = options.notify})
            .get();
    times.push_back(rpc::Clock::now() - began);
    if (reply.message == nullptr) continue;
    if (streams)
      print_items(options, reply.result(), method);
    else
      print(options, reply.result(), method.result ? &**method.result : nullptr);
  }
  if (options.repeat > 1) print_times(std::move(times));
  return Exit::ok;
}

}  // namespace
}  // namespace call_command

Command add_call(CLI::App& program) {
  using namespace call_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand("call", "Calls a method, and prints its result as JSON");
  options->add_to(*app);
  app->add_option("METHOD", options->method, "The name of the method, as weft list shows it")->required();
  app->add_flag("--notify", options->notify, "Do not wait for a reply");
  app->add_option("--metadata", options->metadata,
                  "KEY=VALUE: text that the callee reads; repeat the option for each key")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app->add_option("--items", options->items, "Print N items of a stream and close it; by default all")
      ->type_name("N");
  app->add_option("--repeat", options->repeat, "Call N times, one after the other, and print the times")
      ->type_name("N");
  app->add_option("--max", options->most,
                  "Print at most N elements of a tensor, or bytes; 0: all. By default 100 on a terminal, "
                  "all elsewhere")
      ->type_name("N");
  app->add_flag("--pretty", options->pretty, "Print several lines, as on a terminal");
  app->add_flag("--compact", options->compact, "Print one line, also on a terminal");
  app->allow_extras();
  app->formatter(std::make_shared<UsageWithArguments>());
  app->footer(
      "Arguments: one JSON value for each parameter, or one JSON list of all; '-' is JSON from standard "
      "input.\n"
      "  weft call localhost:7002 market.last WEFT\n"
      "  weft call localhost:7002 market.convert 10 '\"EUR\"' --timeout 1s\n"
      "  echo '[10, \"EUR\"]' | weft call localhost:7002 market.convert -");
  return {app, [options, app] { return run(*options, app->remaining()); }};
}

}  // namespace weft::tool
