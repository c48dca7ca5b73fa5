// A test of one's own service: several agents in one process, without a network; also what happens when one
// dies.
#include "greeter.h"

#include <weft/rpc/testing/cluster.h>

#include <cstdio>

using namespace weft;

int main() {
  test::Cluster cluster{{}, {"server", "client"}};
  cluster["server"].serve(std::make_shared<Greeter>());
  const rpc::Peer server = cluster.peer("client", "server");
  if (test::got(server.call<&Greeter::greet>("test")) != "hello, test") return 1;

  cluster.end("server");
  try {
    test::got(server.call<&Greeter::greet>("test"));
    return 1;
  } catch (const rpc::Error& error) {
    std::puts(error.what());
  }
}
