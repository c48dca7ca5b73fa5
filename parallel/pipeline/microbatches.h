// Microbatches: the data of a step, split into parts along the first dimension. Plain data and pure
// functions.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>

#include <cstdint>
#include <vector>

namespace weft::pipeline {

struct Microbatches {
  std::vector<Values> inputs, targets;  // by micro-batch
  std::vector<double> weights;          // of the micro-batches' losses in the loss of the batch

  std::size_t count() const { return weights.size(); }  // micro-batches
};

// The number of rows of all defined tensors. invalid_argument: there are no inputs, a tensor has no rows or
// another number of rows, or a tensor requires grad.
WEFT_EXPORT std::int64_t rows_of(const Values& inputs, const Values& targets);

// Splits `rows` rows into `count` parts whose sizes differ by at most one row; if there are fewer rows than
// `count`, each row is a part. Either list may be empty or have undefined tensors. Each part has a separate
// version counter, so that an operator may change it in place. If mean_loss is true, the weight of a part is
// its share of the rows, otherwise 1.
WEFT_EXPORT Microbatches split_rows(const Values& inputs, const Values& targets, std::int64_t rows, int count,
                                    bool mean_loss);

// Joins the rows of all parts. parts: by micro-batch. A 0-dimensional value is the weighted_sum() of the
// parts'.
WEFT_EXPORT Values joined(const std::vector<Values>& parts, const std::vector<double>& weights);

// The loss of the batch. losses: by micro-batch.
WEFT_EXPORT at::Tensor weighted_sum(const std::vector<at::Tensor>& losses,
                                    const std::vector<double>& weights);

}  // namespace weft::pipeline
