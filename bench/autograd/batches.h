// Batches: ids of rows, drawn before anything is measured. Thread-safety: none.
#pragma once

#include "bench/autograd/work.h"

#include <ATen/ATen.h>

#include <vector>

namespace weft::bench {

class Batches {
 public:
  explicit Batches(const Work& work) {
    at::Generator generator = at::detail::createCPUGenerator(7);
    for (int i = 0; i < 64; ++i) {
      const at::Tensor drawn = at::rand({batch_rows}, generator, at::kDouble);
      const at::Tensor spread = work.skewed ? drawn.pow(skew) : drawn;
      ids_.push_back(spread.mul(static_cast<double>(work.rows)).to(at::kLong));
    }
  }
  const at::Tensor& next() { return ids_[turn_++ % ids_.size()]; }

 private:
  std::vector<at::Tensor> ids_;
  std::size_t turn_ = 0;
};

}  // namespace weft::bench
