// Schedules of two chunks in the shape of a V. Rank r has stage r ("down") and stage 2p-1-r ("up").
//
// ZB-V and DualPipeV are written as the phases of their papers. V-Half and V-Min repeat a building block. The
// block of micro-batch 0 says at which time each rank computes; micro-batch i follows 6 i later, since each
// rank has six computations for a micro-batch. From rank to rank the block moves by a fixed time in each of
// its four passes (forward down, forward up, backward down the second chunk, backward up the first chunk). A
// value is kept for as long as the passes after it take, so the hops decide the memory: 6 a micro-batch there
// and back give ZB-V's, half of that V-Half's, a third V-Min's. The ranks then compute in the order of the
// block, each as early as it can.
#include <weft/parallel/schedule/generators.h>

#include <weft/parallel/schedule/internal/rank_order.h>
#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

namespace weft::schedule {
namespace {

// Calls write(order, rank, down, up) for each rank.
template <class Write>
Schedule write_ranks(std::string_view name, const Shape& shape, Write&& write) {
  Schedule schedule = empty_schedule(name, shape, 2, 2);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(shape.microbatches);
    write(order, rank, rank, 2 * shape.ranks - 1 - rank);
    schedule.ranks[static_cast<std::size_t>(rank)] = order.take();
  }
  return schedule;
}

// --- Building blocks ---

constexpr int period = 6;

// The passes of a micro-batch, in their order, and the two weight gradients.
enum Pass { forward_down, forward_up, backward_up, backward_down, weight_up, weight_down };

struct Block {
  std::array<int, 4> hops;   // time from rank to rank in each pass
  std::array<int, 3> turns;  // waits between the passes

  // When micro-batch 0 reaches a rank in each pass. Passes 0 and 2 start at rank 0, passes 1 and 3 at the
  // last rank. The weight gradients take the first free times after the input gradients. None if two passes
  // collide.
  std::optional<std::array<int, period>> times(int ranks, int rank) const {
    std::array<int, period> at{};
    std::array<bool, period> taken{};
    const auto take = [&taken](int time) {
      return !std::exchange(taken[static_cast<std::size_t>(time % period)], true);
    };
    int start = 0;
    for (std::size_t pass = 0; pass < hops.size(); ++pass) {
      at[pass] = start + hops[pass] * (pass % 2 == 0 ? rank : ranks - 1 - rank);
      if (!take(at[pass])) return std::nullopt;
      if (pass < turns.size()) start += hops[pass] * (ranks - 1) + 1 + turns[pass];
    }
    for (const auto& [input, weight] :
         {std::pair{backward_up, weight_up}, std::pair{backward_down, weight_down}}) {
      at[weight] = at[input] + 1;
      while (!take(at[weight])) ++at[weight];
    }
    return at;
  }

  // The most activations that a rank holds at a time, from the forwards to the weight gradients. None:
  // collisions.
  std::optional<int> peak(int ranks) const {
    int most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = times(ranks, rank);
      if (!at) return std::nullopt;
      for (const int now : {(*at)[forward_down] % period, (*at)[forward_up] % period}) {
        // The micro-batches i with begin + 6 i <= now <= end + 6 i, in the steady state.
        const auto alive = [now](int begin, int end) {
          const int far = now + 1000 * period;
          return (far - begin) / period - (far - end + period - 1) / period + 1;
        };
        most = std::max(most, alive((*at)[forward_down], (*at)[weight_down]) +
                                  alive((*at)[forward_up], (*at)[weight_up]));
      }
    }
    return most;
  }
};

// Of the blocks whose hops there and back take `round_trip`: one with the least memory, and of those the
// shortest.
Block block_of(std::string_view name, int round_trip, int ranks) {
  std::optional<Block> best;
  std::pair<int, int> least;  // memory, length
  for (int down = 1; down < round_trip; ++down)
    for (int up = 1; up < round_trip; ++up)
      for (int waits = 0; waits < period * period * period; ++waits) {
        const Block block{{down, up, round_trip - up, round_trip - down},
                          {waits % period, waits / period % period, waits / period / period}};
        const std::optional<int> peak = block.peak(ranks);
        if (!peak) continue;
        const std::pair<int, int> cost{*peak, block.turns[0] + block.turns[1] + block.turns[2]};
        if (best && least <= cost) continue;
        best = block;
        least = cost;
      }
  if (!best) refuse(std::string(name), "no building block for " + std::to_string(ranks) + " ranks");
  return *best;
}

Schedule repeat(std::string_view name, const Shape& shape, int round_trip) {
  empty_schedule(name, shape, 2, 2);  // checks the shape
  const Block block = block_of(name, round_trip, shape.ranks);
  return write_ranks(name, shape, [&](RankOrder& order, int rank, int down, int up) {
    const std::array<int, period> at = block.times(shape.ranks, rank).value();
    struct Place {
      int time;
      void (RankOrder::*compute)(int stage);
      int stage;
    };
    std::array<Place, period> places = {{
        {at[forward_down], &RankOrder::forward, down},
        {at[forward_up], &RankOrder::forward, up},
        {at[backward_up], &RankOrder::input_gradient, up},
        {at[backward_down], &RankOrder::input_gradient, down},
        {at[weight_up], &RankOrder::weight_gradient, up},
        {at[weight_down], &RankOrder::weight_gradient, down},
    }};
    std::sort(places.begin(), places.end(),
              [](const Place& a, const Place& b) { return a.time % period < b.time % period; });
    int last = 0;
    for (const Place& place : places) last = std::max(last, place.time / period);
    // In each period a place computes once, as soon as micro-batch 0 has reached it.
    for (int turn = 0; turn < shape.microbatches + last; ++turn)
      for (const Place& place : places)
        if (turn >= place.time / period) (order.*place.compute)(place.stage);
  });
}

}  // namespace

Schedule v_half(const Shape& shape) { return repeat("v_half", shape, 3); }

Schedule v_min(const Shape& shape) { return repeat("v_min", shape, 2); }

Schedule zb_v(const Shape& shape) {
  const int p = shape.ranks;
  const int m = std::max(shape.microbatches, 2 * p - 1);  // the phases need as many
  return write_ranks("zb_v", shape, [&](RankOrder& order, int rank, int down, int up) {
    for (int i = 0; i < 2 * (p - rank) - 1; ++i) order.forward(down);
    for (int i = 0; i < rank; ++i) {
      order.forward(up);
      order.forward(down);
    }
    const auto one_of_each = [&order](int stage, int last) {
      if (order.count(Op::forward, stage) < last) order.forward(stage);
      order.input_gradient(stage);
      order.weight_gradient(stage);
    };
    for (int i = 0; i < p - rank; ++i) one_of_each(up, m);
    while (order.count(Op::forward, up) < m) {
      one_of_each(down, m);
      one_of_each(up, m);
    }
    // Input gradients first: the other ranks wait for them. The weight gradients fill the end of the step.
    for (int i = 0; i < rank; ++i) {
      order.input_gradient(down);
      order.input_gradient(up);
    }
    for (int i = 0; i < p - rank; ++i) {
      order.input_gradient(down);
      order.weight_gradient(down);
    }
    for (const int stage : {up, down})
      while (order.count(Op::weight_gradient, stage) < m) order.weight_gradient(stage);
  });
}

Schedule dual_pipe_v(const Shape& shape) {
  const int p = shape.ranks;
  const int m = std::max(shape.microbatches, 2 * p);  // the phases need as many
  return write_ranks("dual_pipe_v", shape, [&](RankOrder& order, int rank, int down, int up) {
    const int from_last = p - 1 - rank;
    for (int i = 0; i < 2 * from_last; ++i) order.forward(down);
    for (int i = 0; i <= rank; ++i) {
      order.forward(down);
      order.forward(up);
    }
    for (int i = 0; i < from_last; ++i) {
      order.input_gradient(up);
      order.weight_gradient(up);
      order.forward(up);
    }
    for (int i = 0; i < m - 2 * p + rank + 1; ++i) {
      if (i == 0 && rank == p - 1) {  // its forward and backward are of one micro-batch: they cannot overlap
        order.forward(down);
        order.backward(up);
      } else {
        order.overlap(down, up);
      }
      order.overlap(up, down);
    }
    for (int i = 0; i < from_last; ++i) {
      order.backward(up);
      order.overlap(up, down);
    }
    // In the second half of the drain, weight gradients are left for the end.
    std::vector<int> pending;  // their stages, oldest first
    std::size_t computed = 0;
    const auto drain = [&](int stage, bool split) {
      if (!split) return order.backward(stage);
      order.input_gradient(stage);
      pending.push_back(stage);
    };
    const auto weight_gradient = [&] {
      if (computed < pending.size()) order.weight_gradient(pending[computed++]);
    };
    const int half = (rank + 1) / 2;
    for (int i = 0; i <= rank; ++i) {
      drain(up, i > half || (i == half && rank % 2 == 1));
      drain(down, i >= half);
    }
    for (int i = 0; i < from_last; ++i) {
      weight_gradient();
      drain(down, true);
    }
    while (computed < pending.size()) weight_gradient();
  });
}

}  // namespace weft::schedule
