// Two agents and one typed method: remote calls without LibTorch.
#include <weft/rpc/rpc.h>

#include <cstdio>
#include <memory>
#include <string>

using namespace weft;

struct Greeter {
  std::string greet(std::string name) const { return "hello, " + name; }
  using Service = rpc::Service<"greeter", rpc::Method<"greet", &Greeter::greet>>;
};

int main() {
  rpc::Agent server{{.name = "server", .listen = {"tcp://127.0.0.1:0"}}};
  server.serve(std::make_shared<Greeter>());

  rpc::Agent client{{.name = "client"}};
  rpc::Peer peer = client.connect(server.addresses().front());
  std::puts(peer.call<&Greeter::greet>("starter").get().c_str());
}
