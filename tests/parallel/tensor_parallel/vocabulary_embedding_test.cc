#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>

#include <weft/parallel/tensor_parallel/cross_entropy.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::vocabulary_embedding_test {
namespace {

using namespace testing;

constexpr std::int64_t width = 6;

class Vocabularies : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, Vocabularies, up_to_four());

VocabularyParallelEmbedding embedding(const Group& group, std::int64_t vocabulary,
                                      std::optional<std::int64_t> dim = {}) {
  VocabularyParallelEmbedding made(
      group, vocabulary, width, VocabularyEmbeddingOptions{.sequence_dim = dim, .generator = generator(5)});
  made->to(at::kDouble);
  return made;
}

at::Tensor ids_of(std::int64_t vocabulary, std::uint64_t seed) {
  auto drawn = generator(seed);
  return at::randint(vocabulary, {2, 12}, drawn, at::kLong);
}

// A model that embeds ids, and whose output layer has the same weight; 13 is no multiple of 2, 3 or 4.
TEST_P(Vocabularies, ATiedModelTrainsLikeTheWholeOne) {
  for (const std::int64_t vocabulary : {std::int64_t{12}, std::int64_t{13}})
    for (const std::optional<std::int64_t> dim :
         {std::optional<std::int64_t>(), std::optional<std::int64_t>(1)}) {
      torch::manual_seed(5);
      torch::nn::Embedding whole(vocabulary, width);
      whole->to(at::kDouble);
      torch::optim::Adam optimizer(whole->parameters(), 1e-2);
      std::vector<at::Tensor> losses;
      for (std::uint64_t step = 0; step < 20; ++step) {
        optimizer.zero_grad();
        const at::Tensor logits = at::linear(whole(ids_of(vocabulary, step)).tanh(), whole->weight);
        losses.push_back(torch::nn::functional::cross_entropy(logits.flatten(0, 1),
                                                              ids_of(vocabulary, step + 50).flatten()));
        losses.back().backward();
        optimizer.step();
      }
      on_ranks(groups, [&](const Group& group) {
        auto split = embedding(group, vocabulary, dim);
        torch::optim::Adam own(split->parameters(), 1e-2);
        for (std::uint64_t step = 0; step < 20; ++step) {
          own.zero_grad();
          const at::Tensor logits = split->logits(split(ids_of(vocabulary, step)).tanh());
          const at::Tensor loss =
              vocabulary_parallel_cross_entropy(group, logits, ids_of(vocabulary, step + 50), vocabulary);
          loss.backward();
          own.step();
          expect_close({loss.detach()}, {losses[step].detach()});
        }
        expect_parts(*split, *whole);
      });
    }
}

// The invalid id is on all ranks, as the contract requires, or only on the last one.
TEST_P(Vocabularies, AnIdOutsideIsRefusedOnAllRanks) {
  for (const std::optional<std::int64_t> dim :
       {std::optional<std::int64_t>(), std::optional<std::int64_t>(0)})
    for (const std::int64_t bad : {std::int64_t{13}, std::int64_t{-1}})
      for (const bool everywhere : {true, false})
        expect_refused(groups, ErrorKind::invalid_argument,
                       {"VocabularyParallelEmbedding: element 1 is " + std::to_string(bad) + " on rank " +
                            std::to_string(everywhere ? 0 : ranks - 1),
                        "from 0 to 12"},
                       [&](const Group& group) {
                         at::Tensor ids = at::zeros({12}, at::kLong);
                         if (everywhere || group.rank() == ranks - 1) ids[1] = bad;
                         embedding(group, 13, dim)(ids);
                       });
}

TEST_P(Vocabularies, EachRankNeedsAtLeastOneWord) {
  if (ranks == 1) return;
  expect_refused(groups, ErrorKind::invalid_argument, {"at least one word"},
                 [&](const Group& group) { embedding(group, ranks - 1); });
}

}  // namespace
}  // namespace weft::tensor_parallel::vocabulary_embedding_test
