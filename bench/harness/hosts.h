// Hosts: network namespaces of this machine for one measurement, each with its own address on one bridge.
// Hosts needs iproute2 and the permission to create namespaces. If one is missing, std::runtime_error names
// it. Thread-safety: one thread. Entering a namespace affects only the calling thread.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace weft::bench {

class Hosts {
 public:
  // host: limits all data that a host sends. flow: limits each connection that a host makes.
  enum class Limit { host, flow };
  // rate: the limit, in the notation of tc: "1gbit". Empty: no limit.
  explicit Hosts(int count, const std::string& rate = {}, Limit limit = Limit::host);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  static std::string address(int host) { return "10.98.7." + std::to_string(host + 1); }
  // The network namespace of a host, for `ip netns exec`.
  const std::string& name(int host) const { return names_.at(static_cast<std::size_t>(host)); }
  // The host on which the process runs. Throws std::runtime_error if it runs on none.
  int host_of(pid_t process) const;
  // Disconnects the host from the others, which receive neither data nor errors from it.
  void cut(int host) const;
  // Moves the calling thread to that host, with the threads and sockets that it creates from now on.
  void enter(int host) const;

 private:
  void remove();

  std::vector<std::string> names_;  // the names of the namespaces; the bridge's namespace is the last
};

}  // namespace weft::bench
