// Ranks of a new job as threads of one process.
#pragma once

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/support/expect_error.h"

namespace weft::data_parallel::testing {

// Runs f(group) on each rank of a new group, in a thread each, and rethrows the first error.
template <class F>
void on_ranks(int ranks, Backend backend, F f) {
  Company company(ranks, backend);
  on_ranks(company.groups(), std::move(f));
}
template <class F>
void on_ranks(int ranks, F f) {
  on_ranks(ranks, Backend::messages, std::move(f));
}

}  // namespace weft::data_parallel::testing
