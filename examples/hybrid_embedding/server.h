// What the server holds for its trainers: the embedding table, and a place to meet.
#pragma once

#include <torch/torch.h>
#include <weft/rpc/agent/method.h>
#include <weft/rpc/tensor/tensor_codec.h>

// Large and sparse: a lookup reads a few rows, and its gradient is of those rows alone.
struct Table : torch::nn::Module {
  Table(std::int64_t rows, std::int64_t width, std::int64_t seed) {
    torch::manual_seed(static_cast<std::uint64_t>(seed));
    rows_of = register_module(
        "rows",
        torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(rows, width).mode(torch::kMean).sparse(true)));
  }
  // int64 [N, words of a bag] -> the mean of each bag's rows, [N, width]
  at::Tensor lookup(at::Tensor bags) { return rows_of(bags); }

  torch::nn::EmbeddingBag rows_of{nullptr};
  using Service =
      weft::rpc::Service<"table", weft::rpc::Constructor<std::int64_t, std::int64_t, std::int64_t>,
                         weft::rpc::Method<"lookup", &Table::lookup>>;
};

// Each trainer brings tensors and waits for the others; all get the same means. Calls of one object run one
// at a time and a future holds nobody up, so this is all that it takes.
class Meeting {
 public:
  explicit Meeting(std::int64_t trainers) : trainers_(static_cast<std::size_t>(trainers)) {}

  weft::rpc::Future<std::vector<at::Tensor>> mean(std::vector<at::Tensor> brought) {
    if (sums_.empty()) {
      sums_ = std::move(brought);
    } else {
      for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += brought.at(i);
    }
    auto answer = waiting_.emplace_back().future();
    if (waiting_.size() == trainers_) {
      for (auto& sum : sums_) sum /= static_cast<double>(trainers_);
      for (auto& waiting : waiting_) waiting.complete(sums_);
      sums_.clear();
      waiting_.clear();
    }
    return answer;
  }
  using Service = weft::rpc::Service<"meeting", weft::rpc::Constructor<std::int64_t>,
                                     weft::rpc::Method<"mean", &Meeting::mean>>;

 private:
  const std::size_t trainers_;
  std::vector<at::Tensor> sums_;
  std::vector<weft::rpc::Promise<std::vector<at::Tensor>>> waiting_;
};
