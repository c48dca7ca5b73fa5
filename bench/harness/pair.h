// A server and a client process, forked for one measurement: process 0 and 1 of the pins.
//
// The server first sends its address on its channel. When it receives any message, it sends the number of its
// threads and exits. The client sends {"figures": {NAME: NUMBER…}, "threads": NUMBER} and exits. Either
// process may become another program (become()), which uses the channel at descriptor 3 with one message per
// packet.
#pragma once

#include "bench/harness/bench.h"
#include "bench/harness/process.h"

namespace weft::bench {

// The server's side of the pair.
class ServerEnd {
 public:
  explicit ServerEnd(Channel& channel) : channel_(channel) {}
  void announce(const std::string& address) { channel_.send(address); }  // once; the client starts after it
  void wait_for_client();  // returns when the client has measured; the server must still have all its threads
  [[noreturn]] void become(const std::vector<std::string>& command) { channel_.become(command); }

 private:
  Channel& channel_;
};

// The client's side.
class ClientEnd {
 public:
  ClientEnd(Channel& channel, std::string address, const Budget& budget)
      : channel_(channel), address_(std::move(address)), budget_(budget) {}
  const std::string& address() const { return address_; }  // the address that the server announced
  const Budget& budget() const { return budget_; }
  void report(const Figures& figures);  // once, before anything is torn down
  [[noreturn]] void become(const std::vector<std::string>& command) { channel_.become(command); }

 private:
  Channel& channel_;
  std::string address_;
  const Budget& budget_;
};

struct Pair {
  std::function<void(ServerEnd&)> serve;    // announces, serves, and returns after wait_for_client()
  std::function<void(ClientEnd&)> measure;  // measures, and reports the figures
  // The time that the client may use for setup and shutdown, in addition to the measurement.
  std::chrono::milliseconds timeout = std::chrono::seconds{60};
};

// A failure of either process becomes the error of the outcome. If the server dies, this does not wait for
// the client.
Outcome measure_pair(const Pair& pair, const Setting& setting);

Contender contender(std::string peer, Notes notes, Pair pair);

// For a peer that can do the work in several ways. Measures all ways and returns the best outcome. Its note
// `way` names the way. Ways that fail are ignored, unless all fail.
struct Way {
  std::string name;
  std::function<Outcome(const Setting&)> measure;
};
Outcome measure_best(const std::vector<Way>& ways, const Setting& setting);

}  // namespace weft::bench
