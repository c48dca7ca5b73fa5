#include <weft/parallel/sharded/checkpoint/writer_plan.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <map>
#include <utility>

namespace weft::sharded {
namespace {

[[noreturn]] void refuse_plan(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, why);
}

// -1: a size is negative, or the product is larger than any tensor.
std::int64_t elements_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes)
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) return -1;
  return elements;
}

std::string text_of(const std::vector<std::int64_t>& sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes) text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  return text + "]";
}

std::string text_of(const SliceRange& slice, std::int64_t distance) {
  std::string text = slice.dtype + " " + text_of(slice.sizes);
  if (slice.runs) text += " with runs at a distance of " + std::to_string(distance) + " elements";
  return text;
}

using Ranges = std::map<Positions, std::vector<std::size_t>>;  // with the ranks that have them

struct PlannedTensor {
  const SliceRange* first = nullptr;  // the first slice found
  std::size_t first_rank = 0;
  std::int64_t elements = 0, distance = 0;  // distance: of its runs
  bool of_first_rank = false;               // on some rank
  std::map<Runs, Ranges> holders;
};

// The first number below `end` that is in none of the ranges, which are ascending; `end`: all are.
std::int64_t first_gap(const Ranges& ranges, std::int64_t end) {
  std::int64_t covered = 0;
  for (const auto& [range, ranks] : ranges) {
    if (range.first > covered) break;
    covered = std::max(covered, range.second);
  }
  return std::min(covered, end);
}

// Checks that the ranks have all elements of each of the runs, and that the runs together have all elements.
// This is enough, because all runs have one distance.
void expect_covered(const std::string& name, const PlannedTensor& tensor) {
  const auto refuse_gap = [&](std::int64_t element) {
    refuse_plan("tensor '" + name + "' has " + std::to_string(tensor.elements) +
                " elements, and no rank has element " + std::to_string(element) +
                ": expected each element on a rank");
  };
  Ranges first_runs;
  for (const auto& [runs, ranges] : tensor.holders) {
    const std::int64_t count = runs.count(tensor.elements), gap = first_gap(ranges, count);
    if (gap < count) refuse_gap(runs.element(gap));
    first_runs[{runs.first, runs.first + runs.length}];
  }
  const std::int64_t all = std::min(tensor.elements, tensor.distance);
  if (const std::int64_t gap = first_gap(first_runs, all); gap < all) refuse_gap(gap);
}

}  // namespace

SliceRange range_of(const std::string& name, const SlicedTensor& tensor) {
  return {name,
          tensor.sizes,
          c10::toString(tensor.values.scalar_type()),
          tensor.begin,
          tensor.begin + tensor.values.numel(),
          tensor.runs,
          static_cast<std::int64_t>(tensor.values.element_size()),
          tensor.of_first_rank};
}

std::vector<std::vector<std::string>> plan_writers(const std::vector<std::vector<SliceRange>>& ranks) {
  std::map<std::string, PlannedTensor> tensors;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const SliceRange& slice : ranks[rank]) {
      const std::string whose = "rank " + std::to_string(rank) + ": tensor '" + slice.name + "' ";
      const std::int64_t elements = elements_of(slice.sizes);
      const Runs runs = slice.runs.value_or(Runs::all(elements));
      if (elements < 0 || !runs.fit(elements) || slice.begin < 0 || slice.end < slice.begin ||
          slice.end > runs.count(elements))
        refuse_plan(whose + "of sizes " + text_of(slice.sizes) + " has no elements " +
                    std::to_string(slice.begin) + " to " + std::to_string(slice.end) +
                    (slice.runs ? " of these runs" : "") + ", expected a range of existing elements");
      PlannedTensor& tensor = tensors[slice.name];
      if (tensor.first == nullptr) tensor = {&slice, rank, elements, runs.distance, false, {}};
      tensor.of_first_rank |= slice.of_first_rank;
      if (slice.sizes != tensor.first->sizes || slice.dtype != tensor.first->dtype ||
          runs.distance != tensor.distance)
        refuse_plan(whose + "is " + text_of(slice, runs.distance) + ", on rank " +
                    std::to_string(tensor.first_rank) + " it is " + text_of(*tensor.first, tensor.distance) +
                    ", expected the same on all ranks");
      // A slice without elements is written only if the whole tensor has no elements, so that the file has
      // its name.
      Ranges& ranges = tensor.holders[runs];
      if (slice.begin != slice.end || elements == 0) ranges[{slice.begin, slice.end}].push_back(rank);
    }
  std::vector<std::vector<std::string>> writes(ranks.size());
  std::vector<std::int64_t> bytes(ranks.size());
  const auto assign = [&](const std::string& name, const PlannedTensor& tensor, Positions range,
                          std::size_t rank) {
    writes[rank].push_back(name);
    bytes[rank] += (range.second - range.first) * tensor.first->item_size;
  };
  const auto is_decided = [](const PlannedTensor& tensor, const std::vector<std::size_t>& holders) {
    return holders.size() == 1 || tensor.of_first_rank;
  };
  for (const auto& [name, tensor] : tensors) {
    expect_covered(name, tensor);
    for (const auto& [runs, ranges] : tensor.holders)
      for (const auto& [range, holders] : ranges)
        if (is_decided(tensor, holders)) assign(name, tensor, range, holders.front());
  }
  for (const auto& [name, tensor] : tensors)
    for (const auto& [runs, ranges] : tensor.holders)
      for (const auto& [range, holders] : ranges)
        if (!is_decided(tensor, holders))
          assign(name, tensor, range, *std::min_element(holders.begin(), holders.end(), [&](auto a, auto b) {
                   return bytes[a] < bytes[b];
                 }));
  return writes;
}

}  // namespace weft::sharded
