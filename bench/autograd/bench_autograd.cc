// ./dev bench autograd: compares weft's passes, backwards and RRefs with PyTorch's.
#include "bench/autograd/work.h"

namespace weft::bench {
namespace {

std::vector<Work> works() {
  return {
      {"mm/1", Kind::chain},
      {"chain/2", Kind::chain, 2},
      {"chain/4", Kind::chain, 4},
      {"chain/4-256", Kind::chain, 4, 256},
      {"chain/4-256-half-unused", Kind::chain, 4, 256, true},
      {"fanout/4", Kind::fan_out, 4},
      {"passes64", Kind::passes},
      {"remote-to-here", Kind::to_here},
      {"rref-churn", Kind::churn},
      {"rref-memory", Kind::live},
      {.name = "calls/1000", .kind = Kind::wide, .size = 2, .calls = 1000},
      {.name = "calls/10000", .kind = Kind::wide, .size = 2, .calls = 10'000},
      {.name = "lookup/1", .kind = Kind::lookup, .rows = 1'000'000},
      {.name = "lookup/2", .kind = Kind::lookup, .workers = 2, .rows = 1'000'000},
      {.name = "lookup/4", .kind = Kind::lookup, .workers = 4, .rows = 1'000'000},
      {.name = "update/1", .kind = Kind::update, .rows = 1'000'000},
      {.name = "update/2", .kind = Kind::update, .workers = 2, .rows = 1'000'000},
      {.name = "update/4", .kind = Kind::update, .workers = 4, .rows = 1'000'000},
      {.name = "update/2-skewed", .kind = Kind::update, .workers = 2, .rows = 1'000'000, .skewed = true},
      {.name = "update/2-10M", .kind = Kind::update, .workers = 2, .rows = 10'000'000},
  };
}

constexpr MakeContender peers[] = {weft_peer, weft_fast_peer, weft_narrow_peer,
                                   raw_peer,  torch_peer,     torch_python_peer};

}  // namespace

}  // namespace weft::bench

int main(int argc, char** argv) {
  using namespace weft::bench;
  Bench bench{.name = "autograd"};
  add_cases(bench, works(), peers);
  return run_bench(argc, argv, std::move(bench));
}
