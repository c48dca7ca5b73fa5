#include <weft/parallel/collectives/plan/internal/algorithms.h>
#include <weft/parallel/collectives/plan/internal/plan_builder.h>

#include <bit>

namespace weft::collectives {

namespace {

using Memory = PlanBuilder::Memory;

int wrap(int rank, int ranks) { return ((rank % ranks) + ranks) % ranks; }

Plan alone(std::size_t n) {
  PlanBuilder plan(Memory::one, 0);
  plan.copy(Place::output, {0, n}, 0);
  return plan.take();
}

// Sends block after block to the next rank, while it receives blocks of the previous rank and reduces them.
// At the end, block `rank` is complete, in the accumulator.
void ring_reduce(PlanBuilder& plan, Member me, std::span<const Range> blocks) {
  const int next = wrap(me.rank + 1, me.ranks), previous = wrap(me.rank - 1, me.ranks);
  for (int round = 0; round < me.ranks - 1; ++round) {
    const Range sent = blocks[wrap(me.rank - 1 - round, me.ranks)];
    const Range taken = blocks[wrap(me.rank - 2 - round, me.ranks)];
    plan.send(next, round == 0 ? Place::input : Place::accumulator, sent);
    plan.reduce(previous, taken, Place::input, taken.begin);
  }
}

// As ring_reduce(), with complete blocks and without a reduction. This rank's own block is the first.
void ring_share(PlanBuilder& plan, Member me, std::span<const Range> blocks) {
  const int next = wrap(me.rank + 1, me.ranks), previous = wrap(me.rank - 1, me.ranks);
  for (int round = 0; round < me.ranks - 1; ++round) {
    plan.send(next, Place::output, blocks[wrap(me.rank - round, me.ranks)]);
    plan.receive(previous, Place::output, blocks[wrap(me.rank - round - 1, me.ranks)]);
  }
}

Range span_of(std::span<const Range> blocks, int begin, int end) {
  return {blocks[begin].begin, blocks[end - 1].end};
}

// Ranks that reduce in pairs, at distances which halve or double. Their number is a power of two. If P is
// not, pairs of the first ranks act as one rank: the odd rank of each pair sends its data to the even rank,
// and receives the result.
class Pairs {
 public:
  explicit Pairs(Member me) : me_(me), count_(static_cast<int>(std::bit_floor(unsigned(me.ranks)))) {
    extra_ = me.ranks - count_;
  }

  int count() const { return count_; }
  bool paired() const { return me_.rank < 2 * extra_; }
  bool stands_aside() const { return paired() && me_.rank % 2 == 1; }
  int number() const {
    return paired() ? me_.rank / 2 : me_.rank - extra_;
  }  // among the ranks that take part
  int rank_of(int number) const { return number < extra_ ? 2 * number : number + extra_; }

 private:
  Member me_;
  int count_, extra_;
};

// Sends half of its data to a partner each time, and reduces its half of the partner's data: finally block
// `number` is complete. `with`: the initial location of this rank's own values.
void halve(PlanBuilder& plan, const Pairs& pairs, std::span<const Range> blocks, Place with) {
  int begin = 0, end = pairs.count();
  for (int distance = pairs.count() / 2; distance >= 1; distance /= 2) {
    const int middle = begin + distance;
    const bool lower = pairs.number() < middle;
    const int partner = pairs.rank_of(pairs.number() ^ distance);
    plan.send(partner, with, lower ? span_of(blocks, middle, end) : span_of(blocks, begin, middle));
    (lower ? end : begin) = middle;
    const Range kept = span_of(blocks, begin, end);
    plan.reduce(partner, kept, with, kept.begin);
    with = Place::accumulator;
  }
}

// The reverse of halve(), with complete blocks.
void regather(PlanBuilder& plan, const Pairs& pairs, std::span<const Range> blocks) {
  for (int distance = 1; distance < pairs.count(); distance *= 2) {
    const int mine = pairs.number() / distance * distance, theirs = mine ^ distance;
    const int partner = pairs.rank_of(pairs.number() ^ distance);
    plan.send(partner, Place::output, span_of(blocks, mine, mine + distance));
    plan.receive(partner, Place::output, span_of(blocks, theirs, theirs + distance));
  }
}

// The common part of both all_reduces over pairs. reduce(plan, with): among the ranks that take part.
template <class Reduce>
Plan all_reduce_by_pairs(Member me, const Pairs& pairs, std::size_t n, Reduce reduce) {
  PlanBuilder plan(Memory::one, me.chunk);
  if (pairs.stands_aside()) {
    plan.send(me.rank - 1, Place::input, {0, n});
    plan.receive(me.rank - 1, Place::output, {0, n});
    return plan.take();
  }
  if (pairs.paired()) plan.reduce(me.rank + 1, {0, n}, Place::input, 0);
  reduce(plan, pairs.paired() ? Place::accumulator : Place::input);
  if (pairs.paired()) plan.send(me.rank + 1, Place::output, {0, n});
  return plan.take();
}

}  // namespace

bool is_power_of_two(int number) { return number > 0 && std::has_single_bit(unsigned(number)); }

std::vector<Range> even_blocks(std::size_t elements, int parts) {
  std::vector<Range> blocks;
  const std::size_t count = static_cast<std::size_t>(parts), size = elements / count,
                    longer = elements % count;
  std::size_t begin = 0;
  for (std::size_t part = 0; part < count; ++part) {
    const std::size_t end = begin + size + (part < longer ? 1 : 0);
    blocks.push_back({begin, end});
    begin = end;
  }
  return blocks;
}

std::vector<Range> blocks_of(std::span<const std::size_t> sizes) {
  std::vector<Range> blocks;
  std::size_t begin = 0;
  for (const std::size_t size : sizes) {
    blocks.push_back({begin, begin + size});
    begin += size;
  }
  return blocks;
}

Plan ring_all_reduce(Member me, std::size_t n) {
  if (me.ranks == 1) return alone(n);
  PlanBuilder plan(Memory::one, me.chunk);
  const auto blocks = even_blocks(n, me.ranks);
  ring_reduce(plan, me, blocks);
  plan.finish(blocks[me.rank], blocks[me.rank].begin);
  ring_share(plan, me, blocks);
  return plan.take();
}

Plan doubling_all_reduce(Member me, std::size_t n) {
  if (me.ranks == 1) return alone(n);
  const Pairs pairs(me);
  return all_reduce_by_pairs(me, pairs, n, [&](PlanBuilder& plan, Place with) {
    for (int distance = 1; distance < pairs.count(); distance *= 2) {
      const int partner = pairs.rank_of(pairs.number() ^ distance);
      plan.send(partner, with, {0, n});
      plan.reduce(partner, {0, n}, with, 0);
      with = Place::accumulator;
    }
    plan.finish({0, n}, 0);
  });
}

Plan halving_all_reduce(Member me, std::size_t n) {
  if (me.ranks == 1) return alone(n);
  const Pairs pairs(me);
  const auto blocks = even_blocks(n, pairs.count());
  return all_reduce_by_pairs(me, pairs, n, [&](PlanBuilder& plan, Place with) {
    halve(plan, pairs, blocks, with);
    const Range own = blocks[pairs.number()];
    plan.finish(own, own.begin);
    regather(plan, pairs, blocks);
  });
}

Plan tree_reduce(Member me, int root, std::size_t n) {
  if (me.ranks == 1) return alone(n);
  PlanBuilder plan(Memory::one, me.chunk);
  const int place = wrap(me.rank - root, me.ranks);
  Place with = Place::input;
  for (int distance = 1; distance < me.ranks; distance *= 2) {
    if ((place & distance) != 0) {
      plan.send(wrap(me.rank - distance, me.ranks), with, {0, n});
      return plan.take();
    }
    if (place + distance >= me.ranks) continue;
    plan.reduce(wrap(me.rank + distance, me.ranks), {0, n}, with, 0);
    with = Place::accumulator;
  }
  plan.finish({0, n}, 0);
  return plan.take();
}

Plan chain_reduce(Member me, int root, std::size_t n) {
  if (me.ranks == 1) return alone(n);
  PlanBuilder plan(Memory::one, me.chunk);
  const int place = wrap(me.rank - root, me.ranks);
  const bool last = place == me.ranks - 1;
  if (!last) plan.reduce(wrap(me.rank + 1, me.ranks), {0, n}, Place::input, 0);
  if (place == 0) {
    plan.finish({0, n}, 0);
  } else {
    plan.send(wrap(me.rank - 1, me.ranks), last ? Place::input : Place::accumulator, {0, n});
  }
  return plan.take();
}

Plan tree_broadcast(Member me, int root, std::size_t n) {
  PlanBuilder plan(Memory::one, me.chunk);
  const int place = wrap(me.rank - root, me.ranks);
  int distance = 1;  // to the parent: the lowest bit of the number
  while (distance < me.ranks && (place & distance) == 0) distance *= 2;
  if (place != 0) plan.receive(wrap(me.rank - distance, me.ranks), Place::output, {0, n});
  for (distance /= 2; distance >= 1; distance /= 2) {
    if (place + distance < me.ranks) {
      plan.send(wrap(me.rank + distance, me.ranks), place == 0 ? Place::input : Place::output, {0, n});
    }
  }
  if (place == 0) plan.copy(Place::output, {0, n}, 0);
  return plan.take();
}

Plan chain_broadcast(Member me, int root, std::size_t n) {
  PlanBuilder plan(Memory::one, me.chunk);
  const int place = wrap(me.rank - root, me.ranks);
  if (place != 0) plan.receive(wrap(me.rank - 1, me.ranks), Place::output, {0, n});
  if (place != me.ranks - 1) {
    plan.send(wrap(me.rank + 1, me.ranks), place == 0 ? Place::input : Place::output, {0, n});
  }
  if (place == 0) plan.copy(Place::output, {0, n}, 0);
  return plan.take();
}

Plan ring_all_gather(Member me, std::span<const Range> blocks) {
  PlanBuilder plan(Memory::apart, me.chunk);
  plan.copy(Place::output, blocks[me.rank], 0);
  ring_share(plan, me, blocks);
  return plan.take();
}

Plan doubling_all_gather(Member me, std::span<const Range> blocks) {
  PlanBuilder plan(Memory::apart, me.chunk);
  plan.copy(Place::output, blocks[me.rank], 0);
  regather(plan, Pairs(me), blocks);
  return plan.take();
}

Plan ring_reduce_scatter(Member me, std::span<const Range> blocks) {
  if (me.ranks == 1) return alone(blocks[0].size());
  PlanBuilder plan(Memory::apart, me.chunk);
  ring_reduce(plan, me, blocks);
  plan.finish({0, blocks[me.rank].size()}, blocks[me.rank].begin);
  return plan.take();
}

Plan halving_reduce_scatter(Member me, std::span<const Range> blocks) {
  if (me.ranks == 1) return alone(blocks[0].size());
  PlanBuilder plan(Memory::apart, me.chunk);
  halve(plan, Pairs(me), blocks, Place::input);
  plan.finish({0, blocks[me.rank].size()}, blocks[me.rank].begin);
  return plan.take();
}

Plan direct_gather(Member me, int root, std::span<const Range> blocks) {
  PlanBuilder plan(Memory::apart, me.chunk);
  if (me.rank != root) {
    plan.send(root, Place::input, {0, blocks[me.rank].size()});
    return plan.take();
  }
  plan.copy(Place::output, blocks[root], 0);
  for (int step = 1; step < me.ranks; ++step) {
    const int from = wrap(root + step, me.ranks);
    plan.receive(from, Place::output, blocks[from]);
  }
  return plan.take();
}

Plan direct_scatter(Member me, int root, std::span<const Range> blocks) {
  PlanBuilder plan(Memory::apart, me.chunk);
  if (me.rank != root) {
    plan.receive(root, Place::output, {0, blocks[me.rank].size()});
    return plan.take();
  }
  for (int step = 1; step < me.ranks; ++step) {
    const int to = wrap(root + step, me.ranks);
    plan.send(to, Place::input, blocks[to]);
  }
  plan.copy(Place::output, {0, blocks[root].size()}, blocks[root].begin);
  return plan.take();
}

Plan pairwise_all_to_all(Member me, std::span<const Range> to, std::span<const Range> from) {
  PlanBuilder plan(Memory::apart, me.chunk);
  for (int step = 1; step < me.ranks; ++step) {
    const int target = wrap(me.rank + step, me.ranks), source = wrap(me.rank - step, me.ranks);
    plan.send(target, Place::input, to[target], PlanBuilder::Nothing::is_said);
    plan.receive(source, Place::output, from[source], PlanBuilder::Nothing::is_said);
  }
  plan.copy(Place::output, from[me.rank], to[me.rank].begin);
  return plan.take();
}

Plan dissemination_barrier(Member me) {
  PlanBuilder plan(Memory::apart, me.chunk);
  for (int distance = 1; distance < me.ranks; distance *= 2) {
    plan.signal(wrap(me.rank + distance, me.ranks));
    plan.await_signal(wrap(me.rank - distance, me.ranks));
  }
  return plan.take();
}

}  // namespace weft::collectives
