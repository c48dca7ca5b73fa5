// A first program: two agents, a typed method and a function. No LibTorch.
#include <weft/rpc/rpc.h>
#include <cstdio>

using namespace weft;

struct Greeter {
  std::string greet(std::string name) const { return "hello, " + name; }
  using Service = rpc::Service<"greeter", rpc::Method<"greet", &Greeter::greet>>;
};

double halve(double x) { return x / 2; }
using Halve = rpc::Function<"halve", &halve>;  // a free function needs a name for the wire

int main() {
  rpc::Agent server{{.name = "server", .listen = {"tcp://127.0.0.1:0"}}};
  server.serve(std::make_shared<Greeter>());
  server.serve<Halve>();

  rpc::Agent client{{.name = "client"}};
  rpc::Peer peer = client.connect(server.addresses().front());

  std::puts(peer.call<&Greeter::greet>("weft").get().c_str());  // get() blocks this thread
  rpc::Future<double> a = peer.call<Halve>(3.0);                // both calls are in flight
  rpc::Future<double> b = peer.call<Halve>(5.0);
  std::printf("%g\n", a.get() + b.get());

  try {
    peer.with(rpc::CallOptions{.timeout = std::chrono::milliseconds{5}}).call<Halve>(1.0).get();
  } catch (const rpc::Error& error) {  // kind() says what the caller can do
    if (error.kind() == rpc::ErrorKind::deadline_exceeded) std::puts("too late");
  }
}
