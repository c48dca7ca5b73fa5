// One argument more than the method has parameters.
// expect: weft: the arguments of this call do not fit the parameters that the method declares
#include <weft/rpc/rpc.h>

double halve(double x) { return x / 2; }
using Halve = weft::rpc::Function<"halve", &halve>;

double call(const weft::rpc::Peer& peer) {
  peer.call<Halve>(1.0, 2.0).get();  // mistake
  return peer.call<Halve>(1.0).get();
}
