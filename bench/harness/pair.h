// A server and a client process, forked for one measurement: process 0 and 1 of the pins.
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

 private:
  Channel& channel_;
  std::string address_;
  const Budget& budget_;
};

struct Pair {
  std::function<void(ServerEnd&)> serve;    // announces, serves, and returns after wait_for_client()
  std::function<void(ClientEnd&)> measure;  // and reports
};

// Whatever goes wrong in either process is the outcome's error.
Outcome measure_pair(const Pair& pair, const Setting& setting);

Contender contender(std::string peer, Notes notes, Pair pair);

}  // namespace weft::bench
