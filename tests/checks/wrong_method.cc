// A member function that the service does not list.
// expect: weft: this member function is not among the methods of its class's Service
#include <weft/rpc/rpc.h>

struct Greeter {
  std::string greet(std::string name) const { return "hello " + name; }
  std::string part(std::string name) const { return "good-bye " + name; }
  using Service = weft::rpc::Service<"greeter", weft::rpc::Method<"greet", &Greeter::greet>>;
};

std::string call(const weft::rpc::Peer& peer) {
  peer.call<&Greeter::part>("you").get();  // mistake
  return peer.call<&Greeter::greet>("you").get();
}
