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

struct PlannedTensor {
  const SliceRange* first = nullptr;  // that was met
  std::size_t first_rank = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::size_t>> holders;  // ranks, by range
};

void expect_covered(const std::string& name, const PlannedTensor& tensor) {
  std::int64_t covered = 0;
  for (const auto& [range, ranks] : tensor.holders) {
    if (range.first > covered) break;
    covered = std::max(covered, range.second);
  }
  const std::int64_t all = elements_of(tensor.first->sizes);
  if (covered != all)
    refuse_plan("tensor '" + name + "' has " + std::to_string(all) + " elements, and no rank has element " +
                std::to_string(covered));
}

}  // namespace

std::vector<std::vector<std::string>> plan_writers(const std::vector<std::vector<SliceRange>>& ranks) {
  std::map<std::string, PlannedTensor> tensors;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (const SliceRange& slice : ranks[rank]) {
      const std::string whose = "rank " + std::to_string(rank) + ": tensor '" + slice.name + "' ";
      if (slice.begin < 0 || slice.end < slice.begin || slice.end > elements_of(slice.sizes))
        refuse_plan(whose + "of sizes " + text_of(slice.sizes) + " has no elements " +
                    std::to_string(slice.begin) + " to " + std::to_string(slice.end));
      PlannedTensor& tensor = tensors[slice.name];
      if (tensor.first == nullptr) tensor.first = &slice, tensor.first_rank = rank;
      if (slice.sizes != tensor.first->sizes || slice.dtype != tensor.first->dtype)
        refuse_plan(whose + "is " + slice.dtype + " " + text_of(slice.sizes) + ", on rank " +
                    std::to_string(tensor.first_rank) + " it is " + tensor.first->dtype + " " +
                    text_of(tensor.first->sizes));
      // A slice without elements is kept only of a tensor without elements: it has nothing but its name.
      if (slice.begin != slice.end || elements_of(slice.sizes) == 0)
        tensor.holders[{slice.begin, slice.end}].push_back(rank);
    }
  std::vector<std::vector<std::string>> writes(ranks.size());
  std::vector<std::int64_t> elements(ranks.size());
  const auto assign = [&](const std::string& name, std::pair<std::int64_t, std::int64_t> range,
                          std::size_t rank) {
    writes[rank].push_back(name);
    elements[rank] += range.second - range.first;
  };
  for (const auto& [name, tensor] : tensors) {
    expect_covered(name, tensor);
    for (const auto& [range, holders] : tensor.holders)
      if (holders.size() == 1) assign(name, range, holders.front());
  }
  for (const auto& [name, tensor] : tensors)
    for (const auto& [range, holders] : tensor.holders)
      if (holders.size() > 1)
        assign(name, range, *std::min_element(holders.begin(), holders.end(), [&](auto a, auto b) {
                 return elements[a] < elements[b];
               }));
  return writes;
}

}  // namespace weft::sharded
