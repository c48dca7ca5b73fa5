// Generators: the schedules of the literature as pure functions of the pipeline's shape.
//
// All generators give computations only: place_communication() adds the messages (communication.h),
// lowering.h the rest. Every schedule is complete and free of deadlock for each shape, also with fewer
// micro-batches than ranks. Times in the comments are for equal costs of forward, input and weight gradient,
// and p ranks, m micro-batches, v chunks. "In flight" counts the micro-batches of a rank whose backward is
// not complete. invalid_argument: sizes below 1, or a number of chunks that the schedule does not have.
//
// In the pictures, 1F0 is the forward of micro-batch 0 at stage 1, B a backward, I and W its input and weight
// gradients, dots a computation that continues, @2 the version of the weights.
// `weft schedule --type NAME --ranks P --microbatches M` prints them.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <span>
#include <string_view>

namespace weft::schedule {

// The shape of the pipeline, the input of a generator.
struct Shape {
  int ranks = 1;         // p
  int microbatches = 1;  // m
  int chunks = 0;        // v: stages on each rank; 0: as few as the schedule has
};

// --- Flush at the end of the step ---

// GPipe (Huang et al., 2019): all forwards, then all backwards. Bubble (p-1)/(m+p-1); m in flight.
//   rank 0 | 0F0 0F1 0F2 0F3                       0B0 .. 0B1 .. 0B2 .. 0B3 ..
//   rank 1 |     1F0 1F1 1F2 1F3            1B0 .. 1B1 .. 1B2 .. 1B3 ..
//   rank 2 |         2F0 2F1 2F2 2F3 2B0 .. 2B1 .. 2B2 .. 2B3 ..
WEFT_EXPORT Schedule fill_drain(const Shape& shape);
// PipeDream-flush (Narayanan et al., 2021): bubble (p-1)/(m+p-1); p in flight.
//   rank 0 | 0F0 0F1 0F2                0B0 ..  0F3 0B1 ..      0B2 ..     0B3 ..
//   rank 1 |     1F0 1F1        1B0 ..  1F2 1B1 ..  1F3 1B2 ..      1B3 ..
//   rank 2 |         2F0 2B0 .. 2F1 2B1 ..  2F2 2B2 ..  2F3 2B3 ..
WEFT_EXPORT Schedule one_forward_one_backward(const Shape& shape);
// Megatron-LM (Narayanan et al., 2021): 1F1B over v ≥ 1 looped chunks. Bubble (p-1)/(vm+p-1) if p divides m.
//   rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2    2B0 ..     2B1 ..     2B2 .. 0B0 .. 0B1 .. 0B2 ..
//   rank 1 |     1F0 1F1 1F2 3F0 3B0 .. 3F1 3B1 .. 3F2 3B2 .. 1B0 .. 1B1 .. 1B2 ..
WEFT_EXPORT Schedule interleaved(const Shape& shape);
// Breadth-first pipeline parallelism (Lamy-Poirier, 2022): each chunk computes all micro-batches before the
// next chunk. Bubble (p-1)/(vm+p-1) if m ≥ p; each stage is unsharded once in each direction.
//   rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2            2B2 .. 2B1 .. 2B0 .. 0B2 .. 0B1 .. 0B0 ..
//   rank 1 |     1F0 1F1 1F2 3F0 3F1 3F2 3B2 .. 3B1 .. 3B0 .. 1B2 .. 1B1 .. 1B0 ..
WEFT_EXPORT Schedule looped_breadth_first(const Shape& shape);
// The shifting buffer of GSPMD (Xu et al., 2021): in every tick all ranks compute and pass their outputs on.
// Idle actions fill the ticks without work. v ≥ 1 chunks make the buffer circular.
//   rank 0 | 0F0 0F1 0F2 2F0 2F1 2F2            2B2 .. 2B1 .. 2B0 .. 0B2 .. 0B1 .. 0B0 ..
//   rank 1 |     1F0 1F1 1F2 3F0 3F1 3F2 3B2 .. 3B1 .. 3B0 .. 1B2 .. 1B1 .. 1B0 ..
WEFT_EXPORT Schedule shifting_buffer(const Shape& shape);

// --- Backward split into input and weight gradients ---

// ZB-H1 (Qi et al., 2023): bubble (p-1)/(3m+p-1) if m ≥ p; p in flight.
//   rank 0 | 0F0 0F1 0F2         0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3
//   rank 1 |     1F0 1F1     1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3
//   rank 2 |         2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3
WEFT_EXPORT Schedule zb_h1(const Shape& shape);
// ZB-H2 (Qi et al., 2023): no bubble if m ≥ 2p-1 and steps have no barrier; 2p-1 in flight.
//   rank 0 | 0F0 0F1 0F2 0F3     0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3
//   rank 1 |     1F0 1F1 1F2 1I0 1F3 1I1     1I2 1W0 1I3 1W1 1W2 1W3
//   rank 2 |         2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2W0 2W1 2W2 2W3
WEFT_EXPORT Schedule zb_h2(const Shape& shape);
// ZB-H1 over v ≥ 1 looped chunks, as in torch.distributed.pipelining. Bubble (p-1)/(3vm+p-1) if m ≥ p.
//   rank 0 | 0F0 0F1 0F2 2F0 2F1     2I0 2W0 2F2 2I1 2W1 2I2 2W2 0I0 0W0 0I1 0W1 0I2 0W2
//   rank 1 |     1F0 1F1 1F2 3F0 3I0 3F1 3I1 3W0 3F2 3I2 3W1 1I0 3W2 1I1 1W0 1I2 1W1 1W2
WEFT_EXPORT Schedule interleaved_zero_bubble(const Shape& shape);

// --- Two chunks in the shape of a V: rank 0 has the first and the last stage ---

// ZB-V (Qi et al., 2023): no bubble if m ≥ 2p-1 and steps have no barrier; 2p chunks in flight.
//   rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
//   rank 1 |     1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2
WEFT_EXPORT Schedule zb_v(const Shape& shape);
// V-Half (Qi et al., 2024): about 1/2 of the activations of 1F1B, for some bubble.
//   rank 0 | 0F0 0F1     3F0 3I0 3W0     0I0 0F2 3F1 3I1 3W1 0W0 0I1 3F2 3I2 3W2 0W1 0I2 0W2
//   rank 1 |     1F0 2F0 1F1     2I0 1I0 2F1 2W0 1W0 1F2 2I1 1I1 2F2 2W1 1W1 2I2 1I2 2W2 1W2
WEFT_EXPORT Schedule v_half(const Shape& shape);
// V-Min (Qi et al., 2024): about 1/3 of the activations of 1F1B, for more bubble.
//   rank 0 | 0F0         3F0 3I0 3W0 0F1 0I0 0W0 3F1 3I1 3W1 0F2 0I1 0W1 3F2 3I2 3W2     0I2 0W2
//   rank 1 |     1F0 2F0         2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 2W2 1W2
WEFT_EXPORT Schedule v_min(const Shape& shape);
// DualPipe cut in half (DeepSeek-AI, 2025): forwards overlapped with backwards of the other chunk.
//   rank 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3B1 ..            3F2+0B0 .. ..  3B2 .. 0B1 ..        0I2 0W2
//   rank 1 |     1F0 2F0 1F1 2F1 1F2 2B0 ..  2F2+1B0 .. .. 2B1     .. 1B1 ..     2B2 .. 1B2 ..
WEFT_EXPORT Schedule dual_pipe_v(const Shape& shape);

// --- No flush: several versions of the weights ---

// How PipeDream's stages are replicated, and which weights they use.
struct PipedreamOptions {
  // Ranks of each stage; empty: one. The sum is shape.ranks; replica i mod n computes micro-batch i.
  std::vector<int> replicas = {};
  // true: every stage uses the version that stage 0 had when the micro-batch entered the pipeline.
  bool vertical_sync = false;
};
// PipeDream (Narayanan et al., 2019): each micro-batch is a batch that ends with a step. A stage computes a
// forward with its latest weights and stashes them for the backward of the same micro-batch. Replicas reduce
// their gradients in rounds of one micro-batch each.
//   rank 0 | 0F0@0 0F1@0 0F2@0                      0B0@0 ..          0B1@0 ..       0B2@0 ..
//   rank 1 |       1F0@0 1F1@0          1B0@0 ..    1F2@1 1B1@0 ..          1B2@1 ..
//   rank 2 |             2F0@0 2B0@0 .. 2F1@1 2B1@1 ..    2F2@2 2B2@2 ..
WEFT_EXPORT Schedule pipedream(const Shape& shape, const PipedreamOptions& options = {});

// PipeDream-2BW (Narayanan et al., 2021): `batches` batches follow each other without a flush; each has
// shape.microbatches micro-batches. Batch b uses version max(0, b-1) and makes version b+1, so that two
// versions are enough.
//   rank 0 | 0F0@0 0F1@0          0B0@0 ..    0F2@0 0B1@0 ..    0F3@0 0B2@0 ..       0B3@0 ..
//   rank 1 |       1F0@0 1B0@0 .. 1F1@0 1B1@0 ..    1F2@0 1B2@0 ..    1F3@0 1B3@0 ..
WEFT_EXPORT Schedule pipedream_2bw(const Shape& shape, int batches = 2);

// --- By name ---

// A schedule by name, with the numbers of chunks that it allows.
struct Generator {
  std::string_view name;  // "zb-v"
  std::string_view summary;
  int min_chunks, max_chunks;  // 0: any number
  Schedule (*make)(const Shape& shape);
};
// All generators.
WEFT_EXPORT std::span<const Generator> generators();
// invalid_argument: an unknown name; the error lists the known ones.
WEFT_EXPORT Schedule generate(std::string_view name, const Shape& shape);

}  // namespace weft::schedule
