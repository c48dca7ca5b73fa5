#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>

#include <cstdio>
#include <thread>

#include "tools/weft/command.h"
#include "tools/weft/dash/collector.h"
#include "tools/weft/dash/picture.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"
#ifdef WEFT_DASH
#include <weft/rpc/observe/http_server.h>

#include "tools/weft/dash/page.h"
#endif

namespace weft::tool {
namespace dash_command {
namespace {

struct Options : AskedAgent {
  Options() { timeout = "2s"; }
  std::vector<std::string> others;
  std::string listen = "127.0.0.1:8080", password_file, interval = "1s";
};

#ifdef WEFT_DASH

// The data of the page as text; empty until the first sample. Thread-safe.
class Published {
 public:
  void set(std::string text) {
    const rpc::MutexLock lock(mutex_);
    text_ = std::move(text);
  }
  observe::HttpReply reply() const {
    const rpc::MutexLock lock(mutex_);
    if (text_.empty()) return {503, {}, "no data yet\n"};
    return {200, "application/json", text_};
  }

 private:
  mutable rpc::Mutex mutex_;
  std::string text_ WEFT_GUARDED_BY(mutex_);
};

std::unique_ptr<observe::HttpServer> serve(const Options& options, const Published& published) {
  observe::HttpServer::Pages pages{
      {"/", [] { return observe::HttpReply{200, "text/html; charset=utf-8", dash_page}; }},
      {"/data.json", [&published] { return published.reply(); }}};
  const bool with_password = !options.password_file.empty();
  try {
    return std::make_unique<observe::HttpServer>(options.listen, std::move(pages),
                                                 observe::HttpAccess{.remote = with_password,
                                                                     .own_host_only = !with_password,
                                                                     .password_file = options.password_file});
  } catch (const rpc::Error& error) {
    if (error.kind() == rpc::ErrorKind::permission_denied)
      throw UsageError("other hosts can reach " + printable(options.listen) +
                       ": weft dash listens there only with --password-file");
    throw UsageError(printable(error.what()));
  }
}

Exit run(Options& options) {
  const auto interval =
      std::max<std::chrono::nanoseconds>(parse_duration(options.interval), std::chrono::milliseconds{50});
  Client& client = options.connect();
  Collector collector(client, options.others);
  Published published;
  const auto server = serve(options, published);
  std::printf("http://%s/\n", server->address().c_str());
  if (std::fflush(stdout) != 0) return Exit::failed;
  Picture picture;
  for (auto next = rpc::Clock::now();; next = std::max(next + interval, rpc::Clock::now())) {
    std::this_thread::sleep_until(next);
    picture.add(collector.collect());
    published.set(on_one_line(picture.json()));
  }
}

#else

Exit run(Options&) {
  throw UsageError(
      "this program was built without weft::observe, which serves the page: install libspdlog-dev, "
      "prometheus-cpp-dev and libcivetweb-dev, and build weft again");
}

#endif

}  // namespace
}  // namespace dash_command

Command add_dash(CLI::App& program) {
  using namespace dash_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "dash", "Serves a web page with the live state of a job: members, calls, RRefs, collectives, losses");
  options->add_to(*app);
  app->add_option("OTHERS", options->others,
                  "Further addresses; the members of a job are found through its store");
  app->add_option("--listen", options->listen,
                  "The address at which the page is served; port 0: any free port")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app->add_option("-i,--interval", options->interval, "Interval between two requests to the agents")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_option("--password-file", options->password_file,
                  "Permit only the users in this file, by HTTP digest: lines in the format of htdigest, with "
                  "the realm weft")
      ->type_name("FILE");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool
