// The shortest honest program: two agents, one typed method, no LibTorch.
#include <weft/rpc/rpc.h>
#include <cstdio>

using namespace weft;

struct Greeter {
  std::string greet(std::string name) const { return "hello, " + name; }
  using Service = rpc::Service<"greeter", rpc::Method<"greet", &Greeter::greet>>;
};

double halve(double x) { return x / 2; }
using Halve = rpc::Function<"halve", &halve>;  // the name on the wire, for free functions

int main() {
  rpc::Agent server{{.name = "server", .listen = {"tcp://127.0.0.1:0"}}};
  server.serve(std::make_shared<Greeter>());
  server.serve<Halve>();

  rpc::Agent client{{.name = "client"}};
  rpc::Peer peer = client.connect(server.addresses().front());

  std::puts(peer.call<&Greeter::greet>("weft").get().c_str());  // a blocking wait, in a plain main
  rpc::Future<double> a = peer.call<Halve>(3.0);                // eager: both calls are already under way
  rpc::Future<double> b = peer.call<Halve>(5.0);
  std::printf("%g\n", a.get() + b.get());

  try {
    peer.with(rpc::CallOptions{.timeout = std::chrono::milliseconds{5}}).call<Halve>(1.0).get();
  } catch (const rpc::Error& error) {  // kind says what the caller can do
    if (error.kind() == rpc::ErrorKind::deadline_exceeded) std::puts("too late");
  }
}
