// Hosts: network namespaces of this machine for one measurement, each with its own address on one bridge.
// They need iproute2 and the permission to create namespaces. If one is missing, std::runtime_error names it.
// Thread-safety: one thread. Entering a namespace affects only the calling thread.
#pragma once

#include <string>
#include <vector>

namespace weft::bench {

class Hosts {
 public:
  // rate: how much each host may send, as tc writes it: "1gbit". Empty: as much as it can.
  explicit Hosts(int count, const std::string& rate = {});
  ~Hosts();
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  static std::string address(int host) { return "10.98.7." + std::to_string(host + 1); }
  // The calling thread, and what it starts and opens from now on, is on that host.
  void enter(int host) const;

 private:
  void remove();

  std::vector<std::string> names_;  // of the namespaces, the bridge's last
};

}  // namespace weft::bench
