// Schedules with a flush and with full backwards, and those that only split the backward of 1F1B.
//
// 1F1B and its relatives have one pattern. A rank has an order of forwards and an order of backwards over its
// chunks. It computes `warmup` forwards, then a forward and a backward in turn, then the backwards that
// remain. The zero-bubble schedules split the backward and compute each weight gradient `delay` backwards
// later, when the rank would wait otherwise.
#include <weft/parallel/schedule/generators.h>

#include <weft/parallel/schedule/internal/rank_order.h>

#include <algorithm>

namespace weft::schedule {
namespace {

struct Pattern {
  int warmup = 0;
  bool split = false;
  int delay = 0;
};

// The stages in the order in which a rank computes forwards: micro-batches enter in rounds of at least p (all
// of them if m < p), and a round passes one chunk after the other. Backwards take the chunks in the opposite
// order.
std::vector<int> order_of_chunks(const Shape& shape, int rank, bool backward) {
  const int rounds = std::max(1, shape.microbatches / shape.ranks);
  std::vector<int> stages;
  for (int round = 0; round < rounds; ++round) {
    const int size = shape.microbatches / rounds + (round < shape.microbatches % rounds ? 1 : 0);
    for (int i = 0; i < shape.chunks; ++i) {
      const int chunk = backward ? shape.chunks - 1 - i : i;
      stages.insert(stages.end(), static_cast<std::size_t>(size), chunk * shape.ranks + rank);
    }
  }
  return stages;
}

int largest_round(const Shape& shape) {
  const int rounds = std::max(1, shape.microbatches / shape.ranks);
  return (shape.microbatches + rounds - 1) / rounds;
}

std::vector<Action> in_turn(const Shape& shape, int rank, const Pattern& pattern) {
  const std::vector<int> forwards = order_of_chunks(shape, rank, false);
  const std::vector<int> backwards = order_of_chunks(shape, rank, true);
  const std::size_t total = forwards.size();
  const std::size_t warmup = std::min(static_cast<std::size_t>(pattern.warmup), total);
  const auto delay = static_cast<std::size_t>(pattern.delay);
  RankOrder order(shape.microbatches);
  for (std::size_t i = 0; i < warmup; ++i) order.forward(forwards[i]);
  for (std::size_t i = 0; i < total; ++i) {
    if (warmup + i < total) order.forward(forwards[warmup + i]);
    if (!pattern.split) {
      order.backward(backwards[i]);
      continue;
    }
    order.input_gradient(backwards[i]);
    if (i >= delay) order.weight_gradient(backwards[i - delay]);
  }
  if (pattern.split)
    for (std::size_t i = total - std::min(delay, total); i < total; ++i) order.weight_gradient(backwards[i]);
  return order.take();
}

Shape with_chunks(Shape shape, const Schedule& schedule) {
  shape.chunks = schedule.stages() / shape.ranks;
  return shape;
}

// A schedule in which each rank follows its pattern: pattern_of(shape, ranks after this rank) gives warm-up
// and delay.
template <class PatternOf>
Schedule in_turn_everywhere(const Shape& given, Schedule schedule, PatternOf&& pattern_of) {
  const Shape shape = with_chunks(given, schedule);
  for (int rank = 0; rank < shape.ranks; ++rank)
    schedule.ranks[static_cast<std::size_t>(rank)] =
        in_turn(shape, rank, pattern_of(shape, shape.ranks - 1 - rank));
  return schedule;
}

// The forwards that other chunks need before the last chunk of the last rank can start.
int rounds_before_last_chunk(const Shape& shape) { return (shape.chunks - 1) * largest_round(shape); }

}  // namespace

Schedule fill_drain(const Shape& shape) {
  Schedule schedule = empty_schedule("fill_drain", shape, 1, 1);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    RankOrder order(shape.microbatches);
    for (int i = 0; i < shape.microbatches; ++i) order.forward(rank);
    for (int i = 0; i < shape.microbatches; ++i) order.backward(rank);
    schedule.ranks[static_cast<std::size_t>(rank)] = order.take();
  }
  return schedule;
}

Schedule one_forward_one_backward(const Shape& shape) {
  return in_turn_everywhere(shape, empty_schedule("one_forward_one_backward", shape, 1, 1),
                            [](const Shape&, int from_last) { return Pattern{.warmup = from_last}; });
}

Schedule interleaved(const Shape& shape) {
  return in_turn_everywhere(
      shape, empty_schedule("interleaved", shape, 1, 0), [](const Shape& full, int from_last) {
        // One chunk needs no more than 1F1B. With several, the round trip to the next chunk adds a hop each
        // way.
        return Pattern{.warmup = rounds_before_last_chunk(full) + (full.chunks > 1 ? 2 : 1) * from_last};
      });
}

Schedule interleaved_zero_bubble(const Shape& shape) {
  return in_turn_everywhere(shape, empty_schedule("interleaved_zero_bubble", shape, 1, 0),
                            [](const Shape& full, int from_last) {
                              return Pattern{.warmup = rounds_before_last_chunk(full) + from_last,
                                             .split = true,
                                             .delay = full.ranks - 1 - from_last};
                            });
}

Schedule zb_h1(const Shape& shape) {
  return in_turn_everywhere(
      shape, empty_schedule("zb_h1", shape, 1, 1), [](const Shape& full, int from_last) {
        return Pattern{.warmup = from_last, .split = true, .delay = full.ranks - 1 - from_last};
      });
}

Schedule zb_h2(const Shape& shape) {
  return in_turn_everywhere(
      shape, empty_schedule("zb_h2", shape, 1, 1), [](const Shape& full, int from_last) {
        return Pattern{.warmup = 2 * from_last, .split = true, .delay = 2 * (full.ranks - 1 - from_last)};
      });
}

Schedule looped_breadth_first(const Shape& given) {
  Schedule schedule = empty_schedule("looped_breadth_first", given, 1, 0);
  const Shape shape = with_chunks(given, schedule);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    std::vector<Action>& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int i = 0; i < shape.microbatches; ++i)
        actions.push_back({.op = Op::forward, .stage = chunk * shape.ranks + rank, .microbatch = i});
    for (int chunk = shape.chunks; chunk-- > 0;)
      for (int i = shape.microbatches; i-- > 0;)
        actions.push_back({.op = Op::backward, .stage = chunk * shape.ranks + rank, .microbatch = i});
  }
  return schedule;
}

Schedule shifting_buffer(const Shape& given) {
  Schedule schedule = empty_schedule("shifting_buffer", given, 1, 0);
  const Shape shape = with_chunks(given, schedule);
  // Micro-batch i reaches chunk c of rank r in tick c * loop + i + r. The buffer has a place for each rank,
  // so a loop is at least p ticks long.
  const int loop = std::max(shape.microbatches, shape.ranks);
  const int ticks = (shape.chunks - 1) * loop + shape.microbatches + shape.ranks - 1;
  const auto in_tick = [&](Op op, int rank, int tick) -> Action {
    const int place = tick - rank;
    if (place < 0 || place % loop >= shape.microbatches || place / loop >= shape.chunks) return {};
    return {.op = op, .stage = place / loop * shape.ranks + rank, .microbatch = place % loop};
  };
  for (int rank = 0; rank < shape.ranks; ++rank) {
    std::vector<Action>& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (int tick = 0; tick < ticks; ++tick) actions.push_back(in_tick(Op::forward, rank, tick));
    // The backwards follow the ticks in the reverse order.
    for (int tick = ticks; tick-- > 0;) actions.push_back(in_tick(Op::backward, rank, tick));
  }
  return schedule;
}

}  // namespace weft::schedule
