#include <weft/parallel/schedule/generators.h>

#include <weft/parallel/schedule/internal/rank_order.h>
#include <weft/parallel/schedule/internal/refuse.h>

#include <string>

namespace weft::schedule {
namespace {

constexpr int max_computations = 100'000'000;  // a larger product of the sizes is a mistake

Schedule pipedream_of_shape(const Shape& shape) { return pipedream(shape); }
Schedule pipedream_2bw_of_shape(const Shape& shape) { return pipedream_2bw(shape); }

constexpr Generator all[] = {
    {"gpipe", "fill-drain: all forwards, then all backwards", 1, 1, fill_drain},
    {"1f1b", "one forward, one backward", 1, 1, one_forward_one_backward},
    {"interleaved", "1F1B over several chunks on each rank", 1, 0, interleaved},
    {"looped-bfs", "breadth-first over the chunks", 1, 0, looped_breadth_first},
    {"shifting-buffer", "GSPMD: all ranks compute and shift in each tick", 1, 0, shifting_buffer},
    {"zb-h1", "zero bubble with the memory of 1F1B", 1, 1, zb_h1},
    {"zb-h2", "zero bubble with twice the memory of 1F1B", 1, 1, zb_h2},
    {"interleaved-zb", "ZB-H1 over several chunks on each rank", 1, 0, interleaved_zero_bubble},
    {"zb-v", "zero bubble, two chunks in a V, with the memory of 1F1B", 2, 2, zb_v},
    {"v-half", "two chunks in a V, half the memory of 1F1B", 2, 2, v_half},
    {"v-min", "two chunks in a V, a third of the memory of 1F1B", 2, 2, v_min},
    {"dualpipe-v", "two chunks in a V, forwards overlapped with backwards", 2, 2, dual_pipe_v},
    {"pipedream", "no flush, weight stashing, a step after each micro-batch", 1, 1, pipedream_of_shape},
    {"pipedream-2bw", "no flush, two versions of the weights, two batches", 1, 1, pipedream_2bw_of_shape},
};

}  // namespace

std::span<const Generator> generators() { return all; }

Schedule generate(std::string_view name, const Shape& shape) {
  std::string known;
  for (const Generator& each : all) {
    if (each.name == name) return each.make(shape);
    known += (known.empty() ? "" : ", ") + std::string(each.name);
  }
  refuse("generate", "unknown schedule '" + std::string(name) + "', expected one of " + known);
}

Schedule empty_schedule(std::string_view name, const Shape& shape, int min_chunks, int max_chunks) {
  const int chunks = shape.chunks == 0 ? min_chunks : shape.chunks;
  if (shape.ranks < 1 || shape.microbatches < 1)
    refuse(std::string(name), std::to_string(shape.ranks) + " ranks and " +
                                  std::to_string(shape.microbatches) +
                                  " micro-batches, expected at least 1 of each");
  if (chunks < min_chunks || (max_chunks != 0 && chunks > max_chunks))
    refuse(std::string(name), std::to_string(chunks) + " chunks on each rank, expected " +
                                  (max_chunks == 0 ? "at least " : "") + std::to_string(min_chunks));
  if (static_cast<double>(shape.ranks) * shape.microbatches * chunks > max_computations)
    refuse(std::string(name), "more than " + std::to_string(max_computations) +
                                  " forwards, expected fewer ranks, micro-batches or chunks");
  Schedule schedule;
  schedule.microbatches = shape.microbatches;
  schedule.ranks.resize(static_cast<std::size_t>(shape.ranks));
  schedule.placement = min_chunks == 2 ? v_placement(shape.ranks) : looped_placement(shape.ranks, chunks);
  schedule.edges = chain(schedule.stages());
  return schedule;
}

}  // namespace weft::schedule
