#include <weft/parallel/pipeline/microbatches.h>

#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>

#include <algorithm>
#include <optional>
#include <string>

namespace weft::pipeline {
namespace {

std::vector<Values> parts_of(const Values& tensors, std::int64_t parts) {
  std::vector<Values> all(static_cast<std::size_t>(parts));
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      for (Values& part : all) part.emplace_back();
      continue;
    }
    const auto split = at::tensor_split(tensor, parts);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].push_back(split[i].variable_data());
  }
  return all;
}

}  // namespace

std::int64_t rows_of(const Values& inputs, const Values& targets) {
  std::optional<std::int64_t> rows;
  const auto look_at = [&](const Values& tensors, const char* what) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined()) continue;
      const auto refuse = [&](const std::string& text) {
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         std::string("pipeline step: ") + what + " " + std::to_string(i) + text);
      };
      if (tensors[i].dim() == 0 || tensors[i].size(0) == 0) refuse(" has no rows, expected at least one");
      if (tensors[i].requires_grad())
        refuse(" requires grad, expected data: put its computation into the first stage");
      if (tensors[i].size(0) != rows.value_or(tensors[i].size(0)))
        refuse(" has " + std::to_string(tensors[i].size(0)) + " rows, expected " + std::to_string(*rows) +
               " as the tensors before it");
      rows = tensors[i].size(0);
    }
  };
  look_at(inputs, "input");
  look_at(targets, "target");
  if (!rows)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "pipeline step: no inputs, expected at least one");
  return *rows;
}

Microbatches split_rows(const Values& inputs, const Values& targets, std::int64_t rows, int count,
                        bool mean_loss) {
  const std::int64_t parts = std::min<std::int64_t>(count, rows);
  Microbatches data{.inputs = parts_of(inputs, parts), .targets = parts_of(targets, parts)};
  for (std::int64_t i = 0; i < parts; ++i)  // as tensor_split() splits
    data.weights.push_back(
        mean_loss ? static_cast<double>(rows / parts + (i < rows % parts)) / static_cast<double>(rows) : 1);
  return data;
}

Values joined(const std::vector<Values>& parts, const std::vector<double>& weights) {
  Values whole;
  for (std::size_t i = 0; i < parts.front().size(); ++i) {
    std::vector<at::Tensor> rows;
    for (const Values& part : parts) rows.push_back(part[i]);
    whole.push_back(rows.front().dim() == 0 ? weighted_sum(rows, weights) : at::cat(rows));
  }
  return whole;
}

at::Tensor weighted_sum(const std::vector<at::Tensor>& losses, const std::vector<double>& weights) {
  at::Tensor sum;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const at::Tensor weighted = losses[i] * weights[i];
    sum = sum.defined() ? sum + weighted : weighted;
  }
  return sum;
}

}  // namespace weft::pipeline
