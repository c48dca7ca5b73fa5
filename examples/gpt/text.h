// A text as bytes: the first nine tenths to learn from, the others held out.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

struct Batch {
  at::Tensor bytes;      // int64 [rows, length]
  at::Tensor following;  // of each byte the next one

  // The rows of one of several data parallel ranks.
  Batch part(int rank, int ranks) const {
    return {bytes.chunk(ranks)[static_cast<std::size_t>(rank)],
            following.chunk(ranks)[static_cast<std::size_t>(rank)]};
  }
};

class Text {
 public:
  // length: of the parts that are read of it.
  Text(const std::string& path, std::int64_t length);
  static std::string default_path();  // of a text that a Debian package has installed

  std::string_view training() const { return std::string_view(all_).substr(0, training_); }
  std::string_view held_out() const { return std::string_view(all_).substr(training_); }

  // Parts of the training text from random places, the same for equal seeds.
  Batch batch(std::uint64_t seed, std::int64_t rows) const;
  // The held-out text in order, without a rest that is shorter than a part.
  std::vector<Batch> held_out_batches(std::int64_t rows) const;

 private:
  Batch at_places(const at::Tensor& places) const;

  const std::int64_t length_;
  std::string all_;
  std::size_t training_ = 0;
  at::Tensor bytes_;  // of all_
};

// As a batch of one row.
at::Tensor bytes_of(std::string_view text);
