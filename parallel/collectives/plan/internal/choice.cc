#include <weft/parallel/collectives/plan/internal/choice.h>

#include <algorithm>

namespace weft::collectives {

namespace {

Member member(Party me) {
  return {.rank = me.rank,
          .ranks = me.ranks,
          .chunk = std::max<std::size_t>(1, me.bounds.message_bytes / me.item_size)};
}

std::size_t length_of(std::span<const Range> blocks) { return blocks.empty() ? 0 : blocks.back().end; }

bool is_small(Party me, std::size_t n) { return n * me.item_size <= me.bounds.small_bytes; }

// Nothing is written before all ranks have arrived and agree.
Plan agreed(Party me, Plan plan) {
  Plan barrier = dissemination_barrier(member(me));
  const std::size_t agreement = barrier.steps.size();
  plan = in_sequence(std::move(barrier), std::move(plan), me.bounds.ahead_bytes / me.item_size);
  plan.agreement = agreement;
  return plan;
}

// An empty block is no message, so it carries no hash.
bool all_tell(Party me, std::span<const Range> blocks) {
  return is_small(me, length_of(blocks)) &&
         std::none_of(blocks.begin(), blocks.end(), [](Range block) { return block.empty(); });
}

}  // namespace

bool agrees_by_itself(Party me, std::size_t n) { return n != 0 && is_small(me, n); }

Plan plan_all_reduce(Party me, std::size_t n) {
  if (n == 0) return plan_barrier(me);
  if (agrees_by_itself(me, n)) return doubling_all_reduce(member(me), n);
  // The same number of bytes in both cases; halving has fewer messages in sequence.
  const bool ring = n / static_cast<std::size_t>(me.ranks) >= me.bounds.ring_bytes / me.item_size;
  return agreed(me, ring ? ring_all_reduce(member(me), n) : halving_all_reduce(member(me), n));
}

Plan plan_reduce(Party me, int root, std::size_t n) {
  return agreed(me, is_small(me, n) ? tree_reduce(member(me), root, n) : chain_reduce(member(me), root, n));
}

Plan plan_broadcast(Party me, int root, std::size_t n) {
  return agreed(me,
                is_small(me, n) ? tree_broadcast(member(me), root, n) : chain_broadcast(member(me), root, n));
}

Plan plan_all_gather(Party me, std::span<const Range> blocks) {
  if (!all_tell(me, blocks)) return agreed(me, ring_all_gather(member(me), blocks));
  return is_power_of_two(me.ranks) ? doubling_all_gather(member(me), blocks)
                                   : ring_all_gather(member(me), blocks);
}

Plan plan_reduce_scatter(Party me, std::span<const Range> blocks) {
  if (!all_tell(me, blocks)) return agreed(me, ring_reduce_scatter(member(me), blocks));
  return is_power_of_two(me.ranks) ? halving_reduce_scatter(member(me), blocks)
                                   : ring_reduce_scatter(member(me), blocks);
}

Plan plan_gather(Party me, int root, std::span<const Range> blocks) {
  return agreed(me, direct_gather(member(me), root, blocks));
}

Plan plan_scatter(Party me, int root, std::span<const Range> blocks) {
  return agreed(me, direct_scatter(member(me), root, blocks));
}

Plan plan_all_to_all(Party me, std::span<const Range> to, std::span<const Range> from) {
  return agreed(me, pairwise_all_to_all(member(me), to, from));
}

Plan plan_barrier(Party me) { return dissemination_barrier(member(me)); }

Plan plan_of(Party me, const Layout& layout) {
  switch (layout.operation) {
    case Operation::all_reduce:
      return plan_all_reduce(me, layout.elements);
    case Operation::reduce:
      return plan_reduce(me, layout.root, layout.elements);
    case Operation::broadcast:
      return plan_broadcast(me, layout.root, layout.elements);
    case Operation::all_gather:
    case Operation::all_gather_v:
      return plan_all_gather(me, layout.blocks);
    case Operation::reduce_scatter:
    case Operation::reduce_scatter_v:
      return plan_reduce_scatter(me, layout.blocks);
    case Operation::all_to_all:
    case Operation::all_to_all_v:
      return plan_all_to_all(me, layout.blocks, layout.from);
    case Operation::gather:
      return plan_gather(me, layout.root, layout.blocks);
    case Operation::scatter:
      return plan_scatter(me, layout.root, layout.blocks);
    case Operation::barrier:
      return plan_barrier(me);
  }
  return {};
}

}  // namespace weft::collectives
