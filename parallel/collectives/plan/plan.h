// Plan: what one rank does in one collective: steps, and which of them must be done before which.
//
// Plain data, made by the functions of algorithms.h and carried out by whatever moves bytes (ring/). Ranges
// count elements of their place; messages between two ranks are told apart by their label, which counts them
// in each direction, so that the plans of all ranks fit together without a word being exchanged. A step may
// begin once all that it waits for have ended; steps that do not wait for each other may overlap. That is
// what pipelines chunks, and keeps both directions of a link busy.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::collectives {

struct Range {
  std::size_t begin = 0, end = 0;

  std::size_t size() const { return end - begin; }
  bool empty() const { return begin == end; }
  bool overlaps(Range other) const { return begin < other.end && other.begin < end; }
  friend bool operator==(Range, Range) = default;
};

// Where elements lie. What is reduced is gathered in the accumulator, whose elements may be wider than the
// tensors' (float32 for float16); where they are not, a backend lets it be the output itself.
enum class Place : std::uint8_t { input, accumulator, output };

struct Step {
  enum class Kind : std::uint8_t {
    send,     // `range` of `place`, to `peer`
    receive,  // from `peer` into `range` of `place`
    reduce,  // from `peer`: accumulator[range] = its message ⊕ `place`[source…], the lower rank's on the left
    finish,  // here: output[range] = the accumulator's [source…], scaled and rounded as the operation says
    copy,    // here: `place`[range] = input[source…]
  };

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
  std::size_t accumulator = 0;  // elements; 0: nothing is reduced
};

// The second begins when the first has ended, on this rank; but what it sends of the input without waiting
// for anything, up to `ahead` elements, leaves at once. On all ranks alike, as plans are.
WEFT_EXPORT Plan in_sequence(Plan first, Plan second, std::size_t ahead = 0);

// What a plan costs its rank: the figures that docs/collectives.md has formulas for.
struct PlanCost {
  std::size_t messages_sent = 0, elements_sent = 0;
  std::size_t messages_received = 0, elements_received = 0;
  std::size_t elements_reduced = 0;
  friend bool operator==(const PlanCost&, const PlanCost&) = default;
};
WEFT_EXPORT PlanCost cost_of(const Plan& plan);

}  // namespace weft::collectives
