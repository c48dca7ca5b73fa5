// A test of a program's own service, with several agents in one process, without a network. It also tests the
// death of an agent.
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
