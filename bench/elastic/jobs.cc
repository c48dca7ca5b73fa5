// The start of jobs: weft launch, torchrun, torchft_peer.py.
#include "bench/elastic/work.h"
#include "bench/harness/torch_python.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace weft::bench {
namespace {

// An address of this host at which no process listens.
std::string free_address() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw std::system_error(errno, std::generic_category(), "no free port");
  close(listener);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

// The command on the first host.
std::vector<std::string> on_first(const Hosts& hosts, const std::vector<std::string>& command) {
  std::vector<std::string> words{"ip", "netns", "exec", hosts.name(0)};
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace

Launches weft_job(const JobOptions& options, const std::string& reports) {
  const std::string count = std::to_string(options.workers);
  const std::string address = options.hosts != nullptr ? Hosts::address(0) + ":29400" : free_address();
  const std::vector<std::string> worker{WEFT_BENCH_ELASTIC_WORKER, reports, count, options.kind};
  const std::string most = std::to_string(options.workers + (options.join ? 1 : 0));
  // The launcher replaces workers that have failed, and does not blacklist this host. A worker that joins has
  // a separate launcher.
  Launches launches{
      {"env", "WEFT_DETECTION=" + options.detection, WEFT_BENCH_WEFT, "launch", "--min", "3", "--max", most,
       "--hosts", "localhost:" + count, "--host-failures", "1000", "--rendezvous", address, "--threads", "1"},
      {WEFT_BENCH_WEFT, "launch", "--join", "tcp://" + address, "-n", "1", "--threads", "1"}};
  if (options.detection.empty()) launches.first.erase(launches.first.begin(), launches.first.begin() + 2);
  for (auto* const command : {&launches.first, &launches.second})
    command->insert(command->end(), worker.begin(), worker.end());
  if (options.hosts == nullptr) return launches;
  std::string hosts;
  for (int i = 1; i <= options.workers; ++i) hosts += (i == 1 ? "" : ",") + options.hosts->name(i) + ":1";
  *std::find(launches.first.begin(), launches.first.end(), "localhost:" + count) = hosts;
  const auto at = std::find(launches.first.begin(), launches.first.end(), "--min");
  launches.first.insert(at, {"--insecure", "--rsh", "sh " WEFT_BENCH_HOST_SHELL});
  return {on_first(*options.hosts, launches.first), {}};
}

Launches torchelastic_job(const JobOptions& options, const std::string& reports) {
  const std::vector<std::string> script = torch_command("elastic/torch_peer.py", {reports});
  const auto torchrun = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = script;
    // With a shared store, PyTorch 2.15 gives restarted workers the addresses of the previous workers.
    command.insert(command.begin() + 1, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1");
    const auto at = command.insert(command.end() - 2, {"-m", "torch.distributed.run"});
    command.insert(at + 2, arguments.begin(), arguments.end());
    return command;
  };
  const std::string count = std::to_string(options.workers);
  if (!options.join)
    return {torchrun({"--standalone", "--nproc-per-node", count, "--max-restarts", "3"}), {}};
  // The job starts with one agent, and another agent joins later. The first agent waits last_call_timeout (30
  // s by default) for the second one before it starts alone. This wait is not measured.
  const std::string endpoint = free_address();
  const auto agent = [&](const std::string& processes) {
    return torchrun({"--nnodes", "1:2", "--nproc-per-node", processes, "--max-restarts", "3",
                     "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "bench",
                     "--rdzv-conf", "last_call_timeout=1"});
  };
  return {agent(count), agent("1")};
}

Launches torchft_job(const JobOptions& options, const std::string& reports) {
  auto command =
      torch_command("elastic/torchft_peer.py", {reports, std::to_string(options.workers), options.detection});
  command.insert(command.begin() + 1, "RUST_LOG=error");  // by default, torchft logs each step
  if (options.hosts == nullptr) return {command, {}};
  for (int i = 0; i <= options.workers; ++i)
    command.insert(command.end(), {options.hosts->name(i), Hosts::address(i)});
  return {on_first(*options.hosts, command), {}};
}

}  // namespace weft::bench
