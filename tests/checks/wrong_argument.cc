// An argument of a type that does not convert to the parameter's.
// expect: weft: the arguments of this call do not fit the parameters that the method declares
#include <weft/rpc/rpc.h>

struct Greeter {
  std::string greet(std::string name) const { return "hello " + name; }
  using Service = weft::rpc::Service<"greeter", weft::rpc::Method<"greet", &Greeter::greet>>;
};

std::string call(const weft::rpc::Peer& peer) {
  peer.call<&Greeter::greet>(std::vector<int>{1}).get();  // mistake
  return peer.call<&Greeter::greet>("you").get();
}
