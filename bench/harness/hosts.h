// Hosts: network namespaces of this machine for one measurement, each with its own address on one bridge.
// They need iproute2 and the permission to create namespaces. If one is missing, std::runtime_error names it.
// Thread-safety: one thread. Entering a namespace affects only the calling thread.
#pragma once

#include <string>
#include <vector>

namespace weft::bench {

class Hosts {
 public:
  enum class Limit { host, flow };  // everything that a host sends; each of the connections that it makes
  // rate: how much may be sent, as tc writes it: "1gbit". Empty: as much as possible.
  explicit Hosts(int count, const std::string& rate = {}, Limit limit = Limit::host);
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  static std::string address(int host) { return "10.98.7." + std::to_string(host + 1); }
  // Moves the calling thread to that host, with the threads and sockets that it creates from now on.
  void enter(int host) const;

 private:
  void remove();

  std::vector<std::string> names_;  // of the namespaces, the bridge's last
};

}  // namespace weft::bench
