// A server and a client process, forked for one measurement: process 0 and 1 of the pins.
//
// What each says on its channel, so that either may be another program (become(), and then its descriptor 3,
// a message a packet): the server its address, then, asked by any message, the number of its threads; the
// client {"figures": {NAME: NUMBER…}, "threads": NUMBER}. Both then end.
#pragma once

#include "bench/harness/bench.h"
#include "bench/harness/process.h"

namespace weft::bench {

// The server's side of the pair.
class ServerEnd {
 public:
  explicit ServerEnd(Channel& channel) : channel_(channel) {}
  void announce(const std::string& address) { channel_.send(address); }  // once; the client starts then
  void wait_for_client();  // until it has measured; the server is still as it served it
  [[noreturn]] void become(const std::vector<std::string>& command) { channel_.become(command); }

 private:
  Channel& channel_;
};

// The client's side.
class ClientEnd {
 public:
  ClientEnd(Channel& channel, std::string address, const Budget& budget)
      : channel_(channel), address_(std::move(address)), budget_(budget) {}
  const std::string& address() const { return address_; }  // as the server announced it
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
  std::function<void(ClientEnd&)> measure;  // and reports
  // The time that the client may use for setup and shutdown, in addition to the measurement.
  std::chrono::milliseconds timeout = std::chrono::seconds{60};
};

// A failure of either process becomes the error of the outcome. If the server dies, this does not wait for
// the client.
Outcome measure_pair(const Pair& pair, const Setting& setting);

Contender contender(std::string peer, Notes notes, Pair pair);

// For a peer that can do the work in several ways: all are measured, and the best is its outcome, the note
// `way` saying which. Ways that fail are left out, unless all do.
struct Way {
  std::string name;
  std::function<Outcome(const Setting&)> measure;
};
Outcome measure_best(const std::vector<Way>& ways, const Setting& setting);

}  // namespace weft::bench
