// Ranks of a new job as threads of one process.
#pragma once

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/support/errors.h"

namespace weft::test {

// Runs f(group) on each rank, in a thread each, and rethrows the first error.
template <class F>
void on_ranks(const std::vector<collectives::Group>& groups, F f) {
  collectives::testing::on_ranks(groups, std::move(f));
}
// The same on the ranks of a new group.
template <class F>
void on_ranks(int ranks, collectives::testing::Backend backend, F f) {
  collectives::testing::Company company(ranks, backend);
  on_ranks(company.groups(), std::move(f));
}
template <class F>
void on_ranks(int ranks, F f) {
  on_ranks(ranks, collectives::testing::Backend::messages, std::move(f));
}

}  // namespace weft::test
