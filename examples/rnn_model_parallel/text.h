// A text as numbers, one for each different character, cut into columns that are read in parallel.
#pragma once

#include <torch/torch.h>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

struct Window {
  at::Tensor text;       // int64 [length, columns]
  at::Tensor following;  // the next character of each character, of the same shape
};

class Text {
 public:
  Text(const std::string& path, std::int64_t columns) {
    std::ifstream file(path, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    const auto length = static_cast<std::int64_t>(all.size()) / columns;
    if (length < 2)
      throw std::runtime_error(path + ": expected a text of at least two characters for each column");
    beginning_ = all.substr(all.find_first_not_of(" \n"), 20);
    for (const char c : all)
      if (characters_.find(c) == std::string::npos) characters_ += c;
    columns_ = encode(all.substr(0, static_cast<std::size_t>(length * columns)))
                   .view({columns, length})
                   .t()
                   .contiguous();
  }

  std::int64_t characters() const { return static_cast<std::int64_t>(characters_.size()); }
  const std::string& beginning() const { return beginning_; }

  // The next `length` characters of each column. If fewer characters are left, begins again at the start.
  Window next(std::int64_t length) {
    if (at_ + length >= columns_.size(0)) at_ = 0;
    const std::int64_t from = std::exchange(at_, at_ + length);
    return {columns_.narrow(0, from, length), columns_.narrow(0, from + 1, length)};
  }

  at::Tensor encode(const std::string& text) const {  // as one column
    std::vector<std::int64_t> numbers;
    for (const char c : text) numbers.push_back(static_cast<std::int64_t>(characters_.find(c)));
    return at::tensor(numbers).unsqueeze(1);
  }
  char decode(const at::Tensor& one) const {
    return characters_[static_cast<std::size_t>(one.item().toLong())];
  }

 private:
  std::string characters_, beginning_;
  at::Tensor columns_;  // [length of a column, columns]
  std::int64_t at_ = 0;
};
