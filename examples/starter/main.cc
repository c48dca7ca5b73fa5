// Two agents and one typed method: remote calls without LibTorch.
#include "greeter.h"

#include <cstdio>
#include <memory>

using namespace weft;

int main() {
  rpc::Agent server{{.name = "server", .listen = {"tcp://127.0.0.1:0"}}};
  server.serve(std::make_shared<Greeter>());

  rpc::Agent client{{.name = "client"}};
  rpc::Peer peer = client.connect(server.addresses().front());
  std::puts(peer.call<&Greeter::greet>("starter").get().c_str());
}
