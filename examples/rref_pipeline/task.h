// The task: to learn the Fibonacci sequence modulo 97, which repeats after 196 numbers.
#pragma once

#include <ATen/ATen.h>

#include <vector>

struct MicroBatch {
  at::Tensor tokens;   // int64 [N, 2]
  at::Tensor targets;  // int64 [N]
};

// Returns one batch after the other, split into micro-batches.
class Fibonacci {
 public:
  std::vector<MicroBatch> next(std::int64_t micro_batches, std::int64_t size) {
    std::vector<MicroBatch> batch;
    for (std::int64_t i = 0; i < micro_batches; ++i) {
      std::vector<std::int64_t> tokens, targets;
      for (std::int64_t n = 0; n < size; ++n) {
        const std::int64_t sum = (before_ + last_) % 97;
        tokens.insert(tokens.end(), {before_, last_});
        targets.push_back(sum);
        before_ = std::exchange(last_, sum);
      }
      batch.push_back({at::tensor(tokens).view({size, 2}), at::tensor(targets)});
    }
    return batch;
  }

 private:
  std::int64_t before_ = 0, last_ = 1;
};
