// A text as bytes: the first nine tenths are for training, and the rest is held out.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

struct Batch {
  at::Tensor bytes;      // int64 [rows, length]
  at::Tensor following;  // the next byte of each byte

  // The rows of one of several data parallel ranks.
  Batch part(int rank, int ranks) const {
    return {bytes.chunk(ranks)[static_cast<std::size_t>(rank)],
            following.chunk(ranks)[static_cast<std::size_t>(rank)]};
  }
};

class Text {
 public:
  // length: the length of the parts in which the text is read.
  Text(const std::string& path, std::int64_t length);
  static std::string default_path();  // the path of a text that a Debian package has installed

  std::string_view training() const { return std::string_view(all_).substr(0, training_); }
  std::string_view held_out() const { return std::string_view(all_).substr(training_); }

  // Parts of the training text from random positions. Equal seeds give equal parts.
  Batch batch(std::uint64_t seed, std::int64_t rows) const;
  // The held-out text in order. A rest that is shorter than a part is left out.
  std::vector<Batch> held_out_batches(std::int64_t rows) const;

 private:
  Batch at_places(const at::Tensor& places) const;

  const std::int64_t length_;
  std::string all_;
  std::size_t training_ = 0;
  at::Tensor bytes_;  // the bytes of all_
};

// The bytes of the text, as a batch of one row.
at::Tensor bytes_of(std::string_view text);
