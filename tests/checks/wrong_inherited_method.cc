// A method that the service of a derived class lists, called by way of the base, which has no service.
// expect: name the class that lists it: peer.call<Derived, &Derived::f>()
#include <weft/rpc/rpc.h>

struct Base {
  int size() const { return 1; }
};
struct Derived : Base {
  using Service = weft::rpc::Service<"derived", weft::rpc::Method<"size", &Derived::size>>;
};

int call(const weft::rpc::Peer& peer) {
  peer.call<&Derived::size>().get();  // mistake
  return peer.call<Derived, &Derived::size>().get();
}
