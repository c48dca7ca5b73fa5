#include <weft/rpc/job/store/file_store.h>

#include <fcntl.h>
#include <unistd.h>
#include <asio/io_context.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "tools/weft/command.h"
#include "tools/weft/commands/launch_elastic.h"
#include "tools/weft/duration.h"
#include "tools/weft/launch/cores.h"
#include "tools/weft/launch/descendants.h"
#include "tools/weft/launch/elastic/attached.h"
#include "tools/weft/launch/elastic/keeper.h"
#include "tools/weft/launch/elastic/remote.h"
#include "tools/weft/launch/guard.h"
#include "tools/weft/launch/hosts.h"
#include "tools/weft/launch/keep_running.h"
#include "tools/weft/launch/process.h"
#include "tools/weft/launch/supervisor.h"

namespace weft::tool {
namespace launch_command {
namespace {

using namespace launch;

struct Options {
  CLI::App* app = nullptr;
  std::shared_ptr<std::vector<std::string>> rest = std::make_shared<std::vector<std::string>>();
  std::uint64_t workers = 0;
  std::vector<std::string> roles;
  std::uint64_t threads = 0;
  bool pin = false;
  std::size_t hosts = 1, host = 0;
  std::string rendezvous, store, join, logs, grace = "10s", failure_wait = "1s", detection;
  bool elastic = false, plain = false, keep_going = false, attached = false, keep_running = false;
  std::string backoff = "1s", max_backoff = "1m";
  std::optional<std::size_t> max_restarts;
  std::string keep;
  ElasticOptions driven;
  rpc::CredentialOptions credentials;
  bool insecure = false;
};

// PROGRAM and its arguments, with or without a preceding "--".
std::vector<std::string> command_of(const Options& options) {
  std::vector<std::string> words = options.app->remaining();
  const bool marked = words.empty() && !options.rest->empty();
  words.insert(words.end(), options.rest->begin() + (marked ? 1 : 0), options.rest->end());
  return words;
}

HostShare shares_of(const Options& options) {
  if (options.roles.empty()) return {{"", options.workers == 0 ? 1 : options.workers}};
  HostShare shares;
  for (const std::string& role : options.roles) shares.push_back(parse_role(role));
  return shares;
}

std::string new_id() {
  std::random_device random;
  char text[17];
  std::snprintf(text, sizeof text, "%08x%08x", random(), random());
  return text;
}

// Splits --rendezvous into host and port. With several hosts, the launchers connect to this port. With one
// host, rank 0 listens on it.
std::pair<std::string, std::uint16_t> parted(const std::string& rendezvous) {
  try {
    const rpc::Address address = rpc::Address::parse("tcp://" + rendezvous);
    return {address.host, static_cast<std::uint16_t>(std::stoul(address.port))};
  } catch (const std::exception&) {
    throw UsageError("--rendezvous '" + rendezvous + "': expected host:port of host 0");
  }
}

// --detection in seconds, as WEFT_DETECTION has it. Empty: neither is set.
std::string detection_of(const Options& options) {
  if (options.detection.empty()) return {};
  const std::chrono::duration<double> time = parse_duration(options.detection);
  if (time.count() <= 0)
    throw UsageError("--detection '" + options.detection + "': expected a positive time, for example 5s");
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, time.count(), std::chars_format::fixed);
  return {text, end.ptr};
}

void check_kept(const Options& options) {
  const auto refuse = [](const std::string& why) { throw UsageError("--keep-running " + why); };
  if (options.driven.given())
    refuse(
        "excludes --min, --max, --hosts and --discovery: the driver of an elastic job replaces its workers");
  if (options.hosts > 1) refuse("excludes --nnodes: start a launcher on each host");
  if (!options.join.empty()) refuse("excludes --join: workers that join have no names that they could keep");
  if (options.keep_going) refuse("excludes --keep-going: no failure ends the other workers");
  if (options.attached) refuse("excludes --attached: the driver of the job replaces the worker");
  if (options.elastic && !options.store.starts_with("file:") && !options.store.starts_with("etcd:"))
    refuse(
        "with --elastic needs --store file:///PATH or etcd://HOST:PORT/PREFIX: a restart of rank 0 would "
        "lose the store that it keeps");
  if (parse_duration(options.backoff).count() <= 0)
    throw UsageError("--backoff '" + options.backoff + "': expected a positive time, for example 1s");
}

void check(const Options& options) {
  if (options.workers != 0 && !options.roles.empty()) throw UsageError("-n and --role exclude each other");
  if (options.host >= options.hosts)
    throw UsageError("--node-rank: expected a number from 0 to --nnodes minus 1");
  if (options.hosts > 1 && options.rendezvous.empty())
    throw UsageError("--nnodes " + std::to_string(options.hosts) + " needs --rendezvous HOST:PORT of host 0");
  if (!options.join.empty() && (options.hosts > 1 || !options.store.empty() || !options.rendezvous.empty()))
    throw UsageError("--join states the address of the job: it excludes --nnodes, --rendezvous and --store");
  if (options.join.starts_with("file:")) {  // otherwise a missing file would be created as a new store
    const std::string path = rpc::FileStore::path_of(options.join);
    if (!std::filesystem::exists(path))
      throw UsageError("--join: no job has this store: " + path +
                       " does not exist, expected the --store of a job that runs");
  }
  if (options.driven.given() && (options.workers != 0 || !options.roles.empty() || options.hosts > 1 ||
                                 !options.join.empty() || options.pin || options.keep_going))
    throw UsageError(
        "--min, --max, --hosts and --discovery start a job with a driver: they exclude -n, --role, "
        "--nnodes, --join, --pin and --keep-going");
  if (options.keep_running) check_kept(options);
  (void)detection_of(options);
  if (command_of(options).empty())
    throw UsageError("no program, expected weft launch -n 4 PROGRAM [ARGUMENT...]");
}

int drive_workers(const Options& options) {
  elastic::ElasticJob job = options.driven.job();
  job.command = command_of(options);
  job.id = new_id();
  job.credentials = options.credentials;
  if (!job.credentials.secret_file.empty())
    job.credentials.secret_file = std::filesystem::absolute(job.credentials.secret_file).string();
  job.insecure = options.insecure;
  if (!options.store.empty()) {
    job.store = options.store;
  } else if (!options.rendezvous.empty()) {
    (void)parted(options.rendezvous);
    job.store = "tcp://" + options.rendezvous;
  } else {
    job.store = "tcp://127.0.0.1:" + std::to_string(free_port());
    job.reachable = false;
  }
  if (options.threads != 0) job.threads = options.threads;
  job.detection = detection_of(options);
  job.orphan_wait = options.driven.orphan_wait_with(options.store);
  job.logs = options.logs;
  job.prefix = !options.plain;
  job.grace = options.grace;
  if (std::all_of(job.hosts.begin(), job.hosts.end(),
                  [](const auto& host) { return elastic::is_this_host(host.host); }) &&
      !job.discovery)
    (void)find_program(job.command.front());
  return elastic::run_elastic(job);
}

// Where the workers of this host listen with --keep-running: one port after another from that of
// --rendezvous, or any free ports. The first one is the master's port. Empty: WEFT_LISTEN has addresses.
std::vector<std::uint16_t> ports_of(std::size_t workers, std::uint16_t first, bool consecutive) {
  if (std::getenv("WEFT_LISTEN") != nullptr) return {};
  if (consecutive && first + workers - 1 > 65535)
    throw UsageError("--rendezvous: " + std::to_string(workers) + " workers need ports up to " +
                     std::to_string(first + workers - 1) + ", expected at most 65535");
  std::vector<std::uint16_t> ports{first};
  while (ports.size() < workers) {
    const auto port = consecutive ? static_cast<std::uint16_t>(ports.back() + 1) : free_port();
    if (std::find(ports.begin(), ports.end(), port) == ports.end()) ports.push_back(port);
  }
  return ports;
}

JobSettings settings_of(const Options& options, Hosts* hosts) {
  JobSettings job;
  job.node_rank = options.host;
  job.elastic_world = options.elastic;
  job.joins = !options.join.empty();
  job.store = job.joins ? options.join : options.store;
  job.insecure = options.insecure;
  if (!options.credentials.secret_file.empty())  // absolute: workers may change their working directory
    job.secret_file = std::filesystem::absolute(options.credentials.secret_file).string();
  HostGreeting own{shares_of(options), 0, new_id(), options.elastic};
  if (options.rendezvous.empty()) {
    job.master_host = "127.0.0.1";
    own.master_port = free_port();
  } else {
    std::uint16_t port;
    std::tie(job.master_host, port) = parted(options.rendezvous);
    own.master_port = hosts == nullptr ? port : free_port();
  }
  const auto all = hosts == nullptr ? std::vector{own} : hosts->meet(own);
  for (const HostGreeting& host : all) job.hosts.push_back(host.shares);
  job.master_port = all.front().master_port;
  job.id = all.front().id;
  job.cores = own_cores();
  job.processors = own_processors(job.cores.size());
  if (options.threads != 0) job.threads = options.threads;
  if (const char* const variable = std::getenv("OMP_NUM_THREADS")) job.own_threads = variable;
  job.pin = options.pin;
  job.detection = detection_of(options);
  if (options.keep_running) {
    std::size_t workers = 0;
    for (const RoleShare& share : own.shares) workers += share.workers;
    job.ports = ports_of(workers, job.master_port, !options.rendezvous.empty());
  }
  return job;
}

// Host 0 keeps the launchers' store, so it leaves last. While this function waits, signals and failures of
// other hosts are still handled.
void leave(Hosts& hosts, asio::io_context& context, bool failed, std::chrono::nanoseconds grace,
           int& status) {
  context.restart();
  asio::signal_set signals(context, SIGINT, SIGTERM);
  signals.async_wait([&](asio::error_code error, int number) {
    if (error) return;
    status = 128 + number;
    hosts.stop();
  });
  std::thread leaving([&] {
    hosts.leave(failed ? grace + std::chrono::seconds{10} : std::chrono::nanoseconds::max());
    asio::post(context, [&] { signals.cancel(); });
  });
  context.run();
  leaving.join();
}

int launch_workers(Options& options) {
  std::unique_ptr<Hosts> hosts;
  if (options.hosts > 1)
    hosts = std::make_unique<Hosts>(
        HostsOptions{options.hosts, options.host, options.rendezvous, options.credentials, options.insecure});
  const JobSettings job = settings_of(options, hosts.get());
  SupervisorOptions with;
  with.workers = plan_workers(job);
  with.command = command_of(options);
  with.logs = options.logs;
  with.prefix = !options.plain;
  with.grace = parse_duration(options.grace);
  with.failure_wait = parse_duration(options.failure_wait);
  with.keep_going = options.keep_going;
  if (options.keep_running)
    return launch::keep_running(std::move(with),
                                {{.failures = 1,
                                  .healthy_after = parse_duration(options.driven.healthy_after),
                                  .cooldown = parse_duration(options.backoff),
                                  .max_cooldown = parse_duration(options.max_backoff)},
                                 options.max_restarts});
  if (hosts != nullptr)
    with.on_failure = [&](Failure failure) {
      failure.who += " on host " + std::to_string(options.host);
      hosts->tell(failure);
    };
  if (options.elastic && options.store.empty() && options.host == 0)
    std::fprintf(stderr, "weft: to add a worker: weft launch --join tcp://%s:%u PROGRAM\n",
                 job.master_host.c_str(), static_cast<unsigned>(job.master_port));
  asio::io_context context;
  int status = 0;
  const std::chrono::nanoseconds grace = with.grace + with.failure_wait;
  bool workers_left = true;
  Supervisor supervisor(context, std::move(with));
  supervisor.start();
  if (hosts != nullptr)
    hosts->watch([&](const Failure& failure) {
      asio::post(context, [&, failure] {
        if (workers_left) return supervisor.end(failure);
        if (status != 0) return;
        supervisor.say("first failure: " + failure.who + " " + failure.how);
        status = failure.status;
      });
    });
  context.run();
  workers_left = false;
  status = supervisor.status();
  if (hosts != nullptr) leave(*hosts, context, status != 0 && !options.keep_going, grace, status);
  hosts.reset();  // no callback runs after this
  return status;
}

// Opens /dev/null for each closed descriptor among 0, 1 and 2. Otherwise the next file that is opened would
// become standard input, output or error.
void have_standard_files() {
  for (int file = ::open("/dev/null", O_RDWR | O_CLOEXEC); file >= 0;
       file = ::open("/dev/null", O_RDWR | O_CLOEXEC))
    if (file > STDERR_FILENO) {
      ::close(file);
      break;
    }
}

int keep_worker(const Options& options) {
  const char* const store = std::getenv("WEFT_STORE");
  if (store == nullptr) throw UsageError("--keep: WEFT_STORE is not set");
  return elastic::run_keeper({store, options.keep, parse_duration(options.driven.orphan_wait),
                              command_of(options), options.grace, options.logs});
}

Exit run(Options& options) {
  check(options);
  have_standard_files();
  const auto body = [&] {
    try {
      if (!options.keep.empty()) return keep_worker(options);
      if (options.attached) return elastic::run_attached(command_of(options), options.grace);
      return options.driven.given() ? drive_workers(options) : launch_workers(options);
    } catch (...) {
      const Told told = tell(std::current_exception());
      std::fprintf(stderr, "weft: %s\n", told.text.c_str());
      return static_cast<int>(told.exit);
    }
  };
  if (!options.keep.empty()) {
    elastic::outlive_the_driver();
  } else if (options.driven.given() &&
             parse_duration(options.driven.orphan_wait_with(options.store)).count() != 0) {
    become_subreaper();
    return static_cast<Exit>(body());  // without guarded(): the workers outlive this process
  }
  return static_cast<Exit>(guarded(body));
}

}  // namespace
}  // namespace launch_command

Command add_launch(CLI::App& program) {
  using namespace launch_command;
  auto options = std::make_shared<Options>();
  CLI::App* const app = program.add_subcommand(
      "launch", "Runs a program as the workers of a job: launch [OPTIONS] PROGRAM [ARGUMENT...]");
  options->app = app;
  app->prefix_command();
  app->add_option("-n,--workers", options->workers, "Workers on this host (1)")
      ->check(CLI::Range(1, 100'000));
  app->add_option("--role", options->roles,
                  "NAME=N: N workers with this role; repeat the option for each role")
      ->type_name("NAME=N")
      ->allow_extra_args(false);
  app->add_option("--threads", options->threads,
                  "OMP_NUM_THREADS of each worker; by default the value in the shell, or an equal part of "
                  "the processors")
      ->check(CLI::Range(1, 65536));
  app->add_flag("--pin", options->pin, "Run each worker on separate cores");
  app->add_option("--nnodes", options->hosts, "Number of hosts of the job, each with a launcher")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app->add_option("--node-rank", options->host, "The number of this host, from 0")->capture_default_str();
  app->add_option("--rendezvous", options->rendezvous,
                  "The address of host 0; with one host, the address at which rank 0 listens")
      ->type_name("HOST:PORT");
  app->add_option("--store", options->store, "WEFT_STORE for the workers (docs/membership.md)")
      ->type_name("URL");
  app->add_flag("--elastic", options->elastic, "Workers may join and leave: an elastic world");
  app->add_option("--join", options->join,
                  "Add workers, without ranks, to a job of --elastic with this store")
      ->type_name("URL");
  app->add_option("--logs", options->logs, "Write the output to NAME.out and NAME.err in this folder")
      ->type_name("FOLDER");
  app->add_flag("--plain", options->plain, "No [RANK] before the lines of output");
  app->add_option("--grace", options->grace, "Time from SIGTERM to SIGKILL")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_option(
         "--failure-wait", options->failure_wait,
         "Time from the first failure to the SIGTERM of the other workers, which may exit by themselves")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_option("--detection", options->detection,
                  "How fast workers detect that another one has died or hangs (5s); WEFT_DETECTION for the "
                  "workers")
      ->type_name("TIME")
      ->envname("WEFT_DETECTION");
  app->add_flag("--keep-going", options->keep_going, "Keep the other workers running after a failure");
  CLI::Option* const keep_running =
      app->add_flag("--keep-running", options->keep_running,
                    "Start each worker that fails again, with the same rank, name and address")
          ->group("Services");
  const auto for_services = [&](const char* name, auto& value, const char* what) {
    return app->add_option(name, value, what)->needs(keep_running)->group("Services");
  };
  for_services("--max-restarts", options->max_restarts,
               "Restarts of one worker in a row, after which its next failure ends all workers (unlimited)");
  for_services("--backoff", options->backoff,
               "The wait before the first restart; it doubles until a worker has run for --healthy-after")
      ->type_name("TIME")
      ->capture_default_str();
  for_services("--max-backoff", options->max_backoff, "The maximum wait before a restart")
      ->type_name("TIME")
      ->capture_default_str();
  app->add_flag("--attached", options->attached,
                "Run one worker for the driver of an elastic job on another host, until standard input ends")
      ->group("Elastic jobs");
  app->add_option(
         "--keep", options->keep,
         "With --attached: the worker's name in the store WEFT_STORE, which the driver uses instead of "
         "standard input")
      ->type_name("JOB/WORKER")
      ->group("Elastic jobs");
  options->driven.add_to(*app);
  app->add_flag("--insecure", options->insecure,
                "Permit several hosts without credentials; WEFT_INSECURE=1 for the workers");
  const auto file = [&](const char* name, std::string& into, const char* variable, const char* what) {
    app->add_option(name, into, what)->type_name("FILE")->envname(variable)->group("Credentials");
  };
  file("--certificate", options->credentials.certificate_file, "WEFT_CERTIFICATE",
       "The launcher's certificate, PEM");
  file("--key", options->credentials.key_file, "WEFT_KEY", "The key of the certificate");
  file("--trust", options->credentials.trust_file, "WEFT_TRUST", "The authorities to trust");
  file("--secret", options->credentials.secret_file, "WEFT_SECRET",
       "The job's secret, instead of these or in addition; WEFT_SECRET for the workers");
  return {app, [options] { return run(*options); }, options->rest};
}

}  // namespace weft::tool
