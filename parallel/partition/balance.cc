// block_partition() moves one boundary at a time. The smallest cost is subtracted from all costs, so that a
// cost is at most the range R. While the largest block P exceeds the smallest block Q by more than R, the
// neighbour of Q on the side of P gives its nearest cost to Q. If that neighbour is P, the largest block is
// determined again.
#include <weft/parallel/partition/balance.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>

namespace weft::partition {
namespace {

void check_balance(const char* operation, std::span<const double> costs, std::size_t blocks) {
  const auto refuse = [&](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, std::string(operation) + ": " + why);
  };
  if (blocks == 0 || blocks > costs.size())
    refuse(std::to_string(blocks) + " blocks of " + std::to_string(costs.size()) + " costs, expected 1 to " +
           std::to_string(costs.size()));
  for (const double cost : costs)
    if (!std::isfinite(cost) || cost < 0)
      refuse("a cost is " + std::to_string(cost) + ", expected a finite number of at least 0");
}

std::vector<std::size_t> lengths_of(const std::vector<std::size_t>& ends) {
  std::vector<std::size_t> lengths;
  std::adjacent_difference(ends.begin(), ends.end(), std::back_inserter(lengths));
  return lengths;
}

// The costs above the smallest one, as whole numbers: their sums are exact, and with rounding the algorithm
// might not terminate. Costs that are whole numbers keep their values; others are in units of 2^-40 of their
// range.
std::vector<std::int64_t> in_units(std::span<const double> costs) {
  const auto [smallest, largest] = std::minmax_element(costs.begin(), costs.end());
  const double minimum = *smallest, range = *largest - *smallest;
  const bool whole =
      range == 0 ||
      (range < 0x1p40 &&
       std::all_of(costs.begin(), costs.end(), [](double cost) { return cost == std::floor(cost); }));
  std::vector<std::int64_t> units;
  for (const double cost : costs)
    units.push_back(std::llround(whole ? cost - minimum : (cost - minimum) / range * 0x1p40));
  return units;
}

}  // namespace

std::vector<std::size_t> block_partition(std::span<const double> costs, std::size_t blocks) {
  check_balance("block_partition", costs, blocks);
  const std::vector<std::int64_t> units = in_units(costs);
  const std::int64_t range = *std::max_element(units.begin(), units.end());
  std::vector<std::size_t> ends(blocks, costs.size());
  for (std::size_t block = 0; block + 1 < blocks; ++block) ends[block] = costs.size() / blocks * (block + 1);
  std::vector<std::int64_t> sums(blocks);
  for (std::size_t block = 0; block < blocks; ++block)
    for (std::size_t i = block == 0 ? 0 : ends[block - 1]; i < ends[block]; ++i) sums[block] += units[i];

  for (;;) {
    std::size_t p = 0;
    for (std::size_t block = 1; block < blocks; ++block)
      if (sums[block] >= sums[p]) p = block;
    for (;;) {
      const auto distance = [&](std::size_t block) { return block < p ? p - block : block - p; };
      std::size_t q = 0;
      for (std::size_t block = 1; block < blocks; ++block)
        if (sums[block] < sums[q] || (sums[block] == sums[q] && distance(block) < distance(q))) q = block;
      if (sums[p] <= sums[q] + range) return lengths_of(ends);
      const std::size_t giver = p < q ? q - 1 : q + 1;
      const std::int64_t moved = units[p < q ? --ends[giver] : ends[q]++];
      sums[giver] -= moved;
      sums[q] += moved;
      if (giver == p) break;
    }
  }
}

std::vector<std::size_t> exact_partition(std::span<const double> costs, std::size_t blocks) {
  check_balance("exact_partition", costs, blocks);
  const std::size_t count = costs.size();
  std::vector<double> before(count + 1);  // the sum of the costs before
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  // best[b][n]: the smallest largest block of the first n costs in b + 1 blocks; last[b][n]: where the last
  // of these blocks begins. best[b - 1][i] grows with i and the last block shrinks, so their crossing is the
  // best.
  std::vector<std::vector<double>> best(blocks, std::vector<double>(count + 1));
  std::vector<std::vector<std::size_t>> last(blocks, std::vector<std::size_t>(count + 1));
  best[0] = before;
  for (std::size_t b = 1; b < blocks; ++b)
    for (std::size_t n = b + 1; n <= count; ++n) {
      const auto worse = [&](std::size_t i) { return std::max(best[b - 1][i], before[n] - before[i]); };
      std::size_t low = b, high = n - 1;  // the first i whose last block is not above the blocks before it
      while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (before[n] - before[middle] <= best[b - 1][middle])
          high = middle;
        else
          low = middle + 1;
      }
      const std::size_t i = low > b && worse(low - 1) < worse(low) ? low - 1 : low;
      best[b][n] = worse(i);
      last[b][n] = i;
    }
  std::vector<std::size_t> ends(blocks);
  for (std::size_t b = blocks, n = count; b-- > 0; n = last[b][n]) ends[b] = n;
  return lengths_of(ends);
}

namespace {

using Balance = std::vector<std::size_t> (*)(std::span<const double>, std::size_t);

// Balances the layers that are not inputs. An input belongs to the stage of the next such layer.
template <typename Cost>
Partition balance_layers(const Profile& profile, std::size_t stages, Balance balance, Cost cost) {
  const std::vector<std::size_t> order = topological_order(profile);
  std::vector<double> costs;
  for (const std::size_t layer : order)
    if (!is_input(profile, layer)) costs.push_back(cost(layer));
  const std::vector<std::size_t> lengths = balance(costs, stages);
  std::vector<std::size_t> counts(stages);  // of layers, with the inputs
  std::size_t stage = 0, placed = 0;        // of the stage's layers without inputs
  for (const std::size_t layer : order) {
    if (placed == lengths[stage] && stage + 1 < stages) ++stage, placed = 0;
    ++counts[stage];
    if (!is_input(profile, layer)) ++placed;
  }
  return cut_by_count(profile, counts);
}

}  // namespace

Partition balance_by_time(const Profile& profile, std::size_t stages) {
  return balance_layers(profile, stages, block_partition,
                        [&](std::size_t layer) { return compute_seconds(profile, layer); });
}

Partition balance_exactly(const Profile& profile, std::size_t stages) {
  return balance_layers(profile, stages, exact_partition,
                        [&](std::size_t layer) { return compute_seconds(profile, layer); });
}

Partition balance_by_size(const Profile& profile, std::size_t stages, double parameter_copies) {
  return balance_layers(profile, stages, block_partition, [&](std::size_t i) {
    const Layer& layer = profile.layers[i];
    return layer.activation_bytes + parameter_copies * layer.parameter_bytes;
  });
}

}  // namespace weft::partition
