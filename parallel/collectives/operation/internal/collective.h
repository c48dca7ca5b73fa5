// Collective: one collective of a rank, ready for a backend: its signature, its layout, its memory and its
// reduction. The group creates it from a CollectiveCall (preparation.h). A value.
#pragma once

#include <weft/parallel/collectives/operation/internal/reduction.h>
#include <weft/parallel/collectives/operation/internal/signature.h>
#include <weft/parallel/collectives/plan/internal/layout.h>
#include <weft/rpc/core/site.h>
#include <weft/rpc/core/unique_function.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace weft::collectives {

struct Collective {
  Signature signature;
  rpc::Site site;
  Layout layout;
  PlanMemory memory;
  std::optional<Reduction> reduction;
  std::optional<std::chrono::nanoseconds> timeout;  // none: the group's
  std::string refusal = {};                         // why this rank refuses the call; empty: it does not
  rpc::Callback finish = nullptr;                   // the remaining work after success
  // For collectives in shared memory. before: called before the input is read. after: called when the
  // collective has completed. Both are called on the thread that executes the collective.
  std::function<void()> before = nullptr, after = nullptr;

  // "all_reduce(sum, float32[4]) at train.cc:12"
  std::string text() const {
    return signature.text() + " at " + site.text() + (refusal.empty() ? "" : ": " + refusal);
  }
};

}  // namespace weft::collectives
