// Plan: the actions of one rank in one collective, as steps with dependencies.
//
// Plain data, made by the functions of algorithms.h and executed by a backend (messages/plan_transfer.h). A
// range is in elements of the step's place. Messages between two ranks are identified by their label, which
// counts them in each direction, so the plans of all ranks fit together without negotiation. A step may start
// once all steps that it waits for have completed; independent steps may overlap. This pipelines chunks, and
// keeps both directions of a link busy.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::collectives {

// The elements from `begin` up to, not including, `end`.
struct Range {
  std::size_t begin = 0, end = 0;

  // overlaps(): whether the two share an element. An empty range inside of the other also counts as an
  // overlap; an empty range at an end of the other does not.
  std::size_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool overlaps(Range other) const { return begin < other.end && other.begin < end; }
  friend bool operator==(Range, Range) = default;
};

// The location of elements. Reductions accumulate in the accumulator, whose elements may be wider than the
// tensors' (float32 for float16); if they are not, a backend uses the output itself as the accumulator.
enum class Place : std::uint8_t { input, accumulator, output };

// One action of the rank.
struct Step {
  // `place`[source…] are as many elements as `range` has, from `source` on. ⊕ is the reduction.
  enum class Kind : std::uint8_t {
    send,     // `range` of `place`, to `peer`
    receive,  // from `peer` into `range` of `place`
    reduce,   // from `peer`: accumulator[range] = its message ⊕ `place`[source…], the operand of the lower
              // rank on the left
    finish,   // here: output[range] = the accumulator's [source…], scaled and rounded as the operation says
    copy,     // here: `place`[range] = input[source…]
  };

  // peer, label: for a message; -1 and 0 for other steps. label: counts the messages to or from that peer,
  // from 0.
  Kind kind = Kind::send;
  Place place = Place::input;
  int peer = -1;
  std::uint32_t label = 0;
  Range range;
  std::size_t source = 0;
  std::vector<std::uint32_t> after;  // indices of earlier steps
};

struct Plan {
  std::vector<Step> steps;
  std::size_t accumulator = 0;  // elements; 0: no reduction
  std::size_t agreement = 0;  // the first steps: when they have completed, all ranks have started their plans
};

// Joins two plans: on this rank, the second plan starts when the first has completed. Input data that the
// second plan sends without waiting are sent at once, up to `ahead` elements. All ranks must use equal
// arguments.
WEFT_EXPORT Plan in_sequence(Plan first, Plan second, std::size_t ahead = 0);

// The cost of a plan for its rank: docs/internals/collectives.md has formulas for these figures.
struct PlanCost {
  std::size_t messages_sent = 0, elements_sent = 0;
  std::size_t messages_received = 0, elements_received = 0;
  std::size_t elements_reduced = 0;
  friend bool operator==(const PlanCost&, const PlanCost&) = default;
};
WEFT_EXPORT PlanCost cost_of(const Plan& plan);

}  // namespace weft::collectives
