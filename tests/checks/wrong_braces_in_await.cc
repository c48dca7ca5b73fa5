// Braces that make an array within a co_await expression, which g++ 12 refuses: docs/calls.md.

// expect: array used as initializer

// some compilers take it
#include <weft/rpc/rpc.h>

struct Sizes {
  Sizes(std::initializer_list<int> list) : values(list) {}
  std::vector<int> values;
};
struct Sum {
  int add(std::vector<int> values) const { return values.front(); }
  using Service = weft::rpc::Service<"sum", weft::rpc::Method<"add", &Sum::add>>;
};

weft::rpc::Task<int> call(weft::rpc::Peer peer) {
  co_await peer.call<&Sum::add>(Sizes({2, 2}).values);  // mistake
  auto future = peer.call<&Sum::add>(Sizes({2, 2}).values);
  co_return co_await std::move(future);
}
