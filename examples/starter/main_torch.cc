// The same with a tensor: it travels beside the call, from its storage into the receiver's.
#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <ATen/ATen.h>
#include <cstdio>
#include <memory>

using namespace weft;

struct Doubler {
  at::Tensor twice(at::Tensor values) const { return values * 2; }
  using Service = rpc::Service<"doubler", rpc::Method<"twice", &Doubler::twice>>;
};

int main() {
  rpc::Agent server{{.name = "server", .listen = {"tcp://127.0.0.1:0"}}};
  server.serve(std::make_shared<Doubler>());

  rpc::Agent client{{.name = "client"}};
  rpc::Peer peer = client.connect(server.addresses().front());
  at::Tensor doubled = peer.call<&Doubler::twice>(at::ones({2, 3})).get();
  std::printf("%g\n", doubled.sum().item<double>());
}
