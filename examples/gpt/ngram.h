// NGram: a model that counts which byte follows the n - 1 bytes before it. The GPT is compared with this
// model.
//
// Interpolation of Witten and Bell (1991): the more different bytes have followed a context, the larger is
// the weight of the estimate for the context that is one byte shorter.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>

class NGram {
 public:
  NGram(std::size_t n, std::string_view text) : n_(n) {
    for (std::size_t i = 0; i < text.size(); ++i)
      for (std::size_t length = 0; length < n_ && length <= i; ++length) {
        Followers& followers = contexts_[std::string(text.substr(i - length, length))];
        ++followers.total;
        if (followers.counts[static_cast<unsigned char>(text[i])]++ == 0) ++followers.different;
      }
  }

  // The cross entropy of the text, in nats for each byte.
  double cross_entropy(std::string_view text) const {
    double sum = 0;
    for (std::size_t i = 0; i < text.size(); ++i)
      sum -= std::log(probability(text.substr(0, i), static_cast<unsigned char>(text[i])));
    return sum / static_cast<double>(text.size());
  }

 private:
  struct Followers {
    std::unordered_map<unsigned char, int> counts;
    int total = 0, different = 0;
  };

  double probability(std::string_view before, unsigned char next) const {
    double estimate = 1.0 / 256;
    for (std::size_t length = 0; length < n_ && length <= before.size(); ++length) {
      const auto context = contexts_.find(std::string(before.substr(before.size() - length)));
      if (context == contexts_.end()) break;
      const auto& [counts, total, different] = context->second;
      const auto count = counts.find(next);
      estimate = ((count == counts.end() ? 0 : count->second) + different * estimate) / (total + different);
    }
    return estimate;
  }

  const std::size_t n_;
  std::unordered_map<std::string, Followers> contexts_;
};
