// Fashion-MNIST, as Debian's package dataset-fashion-mnist installs it: 60,000 training and 10,000 test
// images of clothes, 28 by 28 pixels, ten classes (Xiao et al. 2017; the files have MNIST's format).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

struct Batch {
  at::Tensor images;  // [N, 1, 28, 28] of the default type, mean 0 and variance 1 over the data set
  at::Tensor labels;  // int64 [N]
  std::int64_t size() const { return labels.size(0); }
};

class Dataset {
 public:
  // part: "train" or "t10k". folder: empty for the folder of the package. If the files are missing, the
  // constructor throws an error that says what to do.
  Dataset(const std::string& folder, const std::string& part);

  std::int64_t size() const { return labels_.size(0); }
  void truncate(std::int64_t size);                              // keeps the first `size` images
  Dataset shard(std::int64_t index, std::int64_t shards) const;  // equal parts, without the remainder
  Batch batch(const at::Tensor& indices) const;
  Batch batch(std::int64_t begin, std::int64_t end) const;

 private:
  at::Tensor images_;  // bytes, as in the file: a quarter of the memory of floats
  at::Tensor labels_;
};

// The batches of several epochs, each in another random order.
class Batches {
 public:
  Batches(Dataset data, std::int64_t batch_size, std::int64_t epochs)
      : data_(std::move(data)), batch_size_(batch_size), epochs_left_(epochs) {}
  std::int64_t total_images() const { return total_images_; }
  std::optional<Batch> next();
  void skip(std::int64_t batches);  // as if next() had returned them

 private:
  std::optional<at::Tensor> next_indices();

  Dataset data_;
  std::int64_t batch_size_, epochs_left_;
  std::int64_t total_images_ = data_.size() * epochs_left_;
  at::Tensor order_;
  std::int64_t next_ = 0;
};
