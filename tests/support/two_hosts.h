// Two hosts, as network namespaces with a cable between them: this process moves to 10.99.7.2, a child of it
// is at 10.99.7.1. Commands on either side produce the faults of the network.
//
// Create it before the process has threads. Thread-safety: none.
#pragma once

#include <sched.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "tests/support/child.h"

namespace weft::test {

inline bool run_command(const std::string& command) {
  return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
}

class TwoHosts {
 public:
  static constexpr const char* here_address = "tcp://10.99.7.2:0";
  static constexpr const char* there_address = "tcp://10.99.7.1:0";

  // serve: the function of the other host. It returns one line about that host, and the objects that it
  // created live on. If the hosts cannot be created, missing() returns the reason.
  explicit TwoHosts(std::function<std::string()> serve) {
    if (!run_command("ip -V")) {
      missing_ = "there is no `ip` here to make hosts with";
      return;
    }
    other_ = std::make_unique<Child>([serve = std::move(serve)](int pipe, int orders) {
      if (::unshare(CLONE_NEWNET) != 0) return say(pipe, "no");
      say(pipe, std::to_string(::getpid()));
      line_of(orders);  // its end of the cable exists
      if (!connect_cable("weft1", "10.99.7.1/24")) return say(pipe, "no");
      say(pipe, serve());
      for (;;) say(pipe, run_command(line_of(orders)) ? "yes" : "no");
    });
    const std::string pid = other_->line();
    if (pid == "no" || ::unshare(CLONE_NEWNET) != 0) {
      missing_ = "the system does not let this process make network namespaces";
    } else if (!run_command("ip link add weft0 type veth peer name weft1 netns " + pid)) {
      missing_ = "the kernel has no veth";
    } else if (!connect_cable("weft0", "10.99.7.2/24")) {
      missing_ = "the cable could not be connected";
    } else {
      other_->tell("go on");
      said_ = other_->line();
    }
  }

  const std::string& missing() const { return missing_; }  // empty: the hosts exist
  const std::string& said() const { return said_; }        // the line that `serve` returned
  bool there(const std::string& command) {
    other_->tell(command);
    return other_->line() == "yes";
  }
  static bool here(const std::string& command) { return run_command(command); }
  // Resets every TCP connection of this host, as an administrator or a firewall does. Returns false if the
  // kernel does not support this.
  static bool reset_connections() { return run_command("ss -K -t state established dst 10.99.7.1"); }

 private:
  static bool connect_cable(const std::string& device, const std::string& address) {
    return run_command("ip address add " + address + " dev " + device) &&
           run_command("ip link set " + device + " up") && run_command("ip link set lo up");
  }

  std::unique_ptr<Child> other_;
  std::string missing_, said_;
};

}  // namespace weft::test
