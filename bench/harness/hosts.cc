#include "bench/harness/hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace weft::bench {
namespace {

void run(const std::string& command) {
  if (std::system((command + " 2>/dev/null >&2").c_str()) != 0)
    throw std::runtime_error("cannot create hosts: " + command);
}

void ip(const std::string& words) { run("ip " + words); }

// A host makes its connections from 16 ports, each with a separate class of HTB.
void limit_flows(const std::string& host, const std::string& rate) {
  constexpr int first = 40'000, ports = 16;
  run("ip netns exec " + host + " sh -c 'echo " + std::to_string(first) + " " +
      std::to_string(first + ports - 1) + " > /proc/sys/net/ipv4/ip_local_port_range'");
  const std::string tc = "tc -n " + host + " ", device = " add dev eth0 ";
  run(tc + "qdisc" + device + "root handle 1: htb");
  for (int i = 0; i < ports; ++i) {
    const std::string id = "1:" + std::to_string(i + 1);
    run(tc + "class" + device + "parent 1: classid " + id + " htb rate " + rate + " quantum 60000");
    run(tc + "filter" + device + "parent 1: protocol ip u32 match ip sport " + std::to_string(first + i) +
        " 0xffff flowid " + id);
  }
}

}  // namespace

Hosts::Hosts(int count, const std::string& rate, Limit limit) {
  const std::string name = "weft_bench" + std::to_string(getpid()) + "_";
  try {
    const std::string bridge = name + "bridge";
    ip("netns add " + bridge);
    names_.push_back(bridge);
    ip("-n " + bridge + " link add bridge type bridge");
    ip("-n " + bridge + " link set bridge up");
    for (int host = 0; host < count; ++host) {
      const std::string own = name + std::to_string(host), port = "h" + std::to_string(host);
      ip("netns add " + own);
      names_.insert(names_.end() - 1, own);
      ip("-n " + bridge + " link add " + port + " type veth peer name eth0 netns " + own);
      ip("-n " + bridge + " link set " + port + " master bridge up");
      ip("-n " + own + " address add " + address(host) + "/24 dev eth0");
      ip("-n " + own + " link set eth0 up");
      ip("-n " + own + " link set lo up");
      if (rate.empty()) continue;
      if (limit == Limit::flow) {
        limit_flows(own, rate);
      } else {
        run("tc -n " + own + " qdisc add dev eth0 root tbf rate " + rate + " burst 128kb latency 50ms");
      }
    }
  } catch (...) {
    remove();
    throw;
  }
}

Hosts::~Hosts() { remove(); }

void Hosts::remove() {
  for (const std::string& name : names_)
    if (std::system(("ip netns delete " + name + " 2>/dev/null").c_str()) != 0)
      continue;  // the other namespaces are still removed
}

int Hosts::host_of(pid_t process) const {
  const std::filesystem::path network = "/proc/" + std::to_string(process) + "/ns/net";
  for (int host = 0; host + 1 < static_cast<int>(names_.size()); ++host)
    if (std::filesystem::equivalent(network, "/run/netns/" + name(host))) return host;
  throw std::runtime_error("process " + std::to_string(process) + " runs on none of the hosts");
}

void Hosts::cut(int host) const {
  ip("-n " + names_.back() + " link set h" + std::to_string(host) + " down");
}

void Hosts::enter(int host) const {
  const int space = open(("/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0)
    throw std::system_error(errno, std::generic_category(), "a host's network");
  close(space);
}

}  // namespace weft::bench
