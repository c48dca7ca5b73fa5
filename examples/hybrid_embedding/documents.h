// Documents of `length` words, each about one of `topics` topics. Half of the words of a document belong to
// its topic, and the other half are arbitrary words. The words of a topic are scattered over the vocabulary,
// so the topic of each word has to be learnt.
#pragma once

#include <torch/torch.h>

constexpr std::int64_t vocabulary = 2000, topics = 20, length = 16;

struct Documents {
  at::Tensor words;  // int64 [N, length]
  at::Tensor topic;  // int64 [N]
};

inline Documents some_documents(std::int64_t count) {
  auto topic = torch::randint(topics, {count}, at::kLong);
  auto of_topic =
      torch::randint(vocabulary / topics, {count, length / 2}, at::kLong) * topics + topic.unsqueeze(1);
  auto any = torch::randint(vocabulary, {count, length - length / 2}, at::kLong);
  return {at::cat({of_topic, any}, 1), topic};
}
