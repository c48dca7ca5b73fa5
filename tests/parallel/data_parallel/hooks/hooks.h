// Buckets and gradients for tests of communication hooks, without a reducer.
#pragma once

#include <weft/parallel/data_parallel/hooks/communication_hook.h>

#include <numeric>
#include <sstream>
#include <string>

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/support/archives.h"

namespace weft::data_parallel::testing {

using Shapes = std::vector<std::vector<std::int64_t>>;
using Tensors = std::vector<at::Tensor>;

// The gradients of a rank in an iteration.
inline Tensors gradients_of(const Shapes& shapes, int rank, int iteration,
                            at::ScalarType dtype = at::kDouble) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 * iteration + rank));
  Tensors all;
  for (const auto& shape : shapes) all.push_back(at::randn(shape, generator, dtype));
  return all;
}

// A bucket as the reducer makes it: each gradient begins at a multiple of 64 bytes. The gradients belong to
// the parameters first, first + 1, and so on.
inline GradientBucket bucket_for(const Group& group, const Tensors& like, std::size_t index = 0,
                                 std::size_t first = 0) {
  GradientBucket bucket{.index = index};
  const auto padded = [](const at::Tensor& tensor) {
    const auto item = static_cast<std::int64_t>(tensor.element_size());
    return (tensor.numel() * item + 63) / 64 * 64 / item;
  };
  std::int64_t total = 0;
  for (const at::Tensor& tensor : like) total += padded(tensor);
  bucket.buffer = group.empty({total}, like.front().options());
  bucket.buffer.zero_();
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : like) {
    bucket.gradients.push_back(bucket.buffer.as_strided(tensor.sizes(), tensor.strides(), begin));
    bucket.parameters.push_back(tensor);
    bucket.indices.push_back(first++);
    begin += padded(tensor);
  }
  return bucket;
}

inline void reduce(CommunicationHook& hook, const Group& group, GradientBucket& bucket) {
  for (int step = 0;; ++step) {
    auto started = hook.run(group, bucket, step);
    if (!started) return;
    std::move(*started).get();
  }
}

// Runs one iteration with one bucket. Returns the results for the gradients.
inline Tensors reduce(CommunicationHook& hook, const Group& group, GradientBucket& bucket,
                      const Tensors& gradients) {
  for (std::size_t i = 0; i < gradients.size(); ++i) bucket.gradients[i].copy_(gradients[i]);
  hook.begin_iteration();
  reduce(hook, group, bucket);
  Tensors results;
  for (const at::Tensor& gradient : bucket.gradients) results.push_back(gradient.clone());
  return results;
}

// Expects that the tensor has the same bits on all ranks.
inline void expect_same_bits(const Group& group, const at::Tensor& tensor) {
  const at::Tensor first = tensor.clone();
  group.broadcast(first, 0).get();
  EXPECT_TRUE(at::equal(tensor, first));
}

template <class Hook>
void copy_state(const Hook& from, Hook& to) {
  test::load(to, test::saved(from));
}

inline at::Tensor mean(const Tensors& tensors) { return at::stack(tensors).mean(0); }

// The mean of the gradients of the ranks from `first` to `last` in an iteration.
inline Tensors mean_of_ranks(const Shapes& shapes, int first, int last, int iteration,
                             at::ScalarType dtype = at::kDouble) {
  std::vector<Tensors> by_parameter(shapes.size());
  for (int rank = first; rank < last; ++rank) {
    const Tensors own = gradients_of(shapes, rank, iteration, dtype);
    for (std::size_t i = 0; i < own.size(); ++i) by_parameter[i].push_back(own[i]);
  }
  Tensors means;
  for (const Tensors& some : by_parameter) means.push_back(mean(some));
  return means;
}

inline Tensors mean_of(const Shapes& shapes, int ranks, int iteration, at::ScalarType dtype = at::kDouble) {
  return mean_of_ranks(shapes, 0, ranks, iteration, dtype);
}

// The averages of the gradients of a Net in float32, of which each rank rounds its own ones, and which are
// rounded again.
inline Tensors rounded_averages(int ranks, at::ScalarType dtype) {
  Tensors averages;
  for (int rank = 0; rank < ranks; ++rank) {
    Net net(1, at::kFloat);
    net.forward(at::full({2, 5}, rank + 1.0)).sum().backward();
    const Tensors gradients = gradients_of(net);
    averages.resize(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor rounded = gradients[i].to(dtype).to(at::kFloat);
      averages[i] = rank == 0 ? rounded : averages[i] + rounded;
    }
  }
  for (at::Tensor& sum : averages) sum = (sum / ranks).to(dtype).to(at::kFloat);
  return averages;
}

// Reduces the gradients of some iterations, and then zeros: the sums of the results are those of the
// gradients. make() returns a hook with error feedback.
template <class Make>
void expect_that_everything_is_sent(Make make, const Shapes& shapes, int iterations, int zeros) {
  constexpr int ranks = 3;
  const auto add = [](Tensors& sums, const Tensors& more) {
    if (sums.empty()) return sums.assign(more.begin(), more.end());
    for (std::size_t i = 0; i < more.size(); ++i) sums[i] += more[i];
  };
  Tensors expected;
  for (int iteration = 0; iteration < iterations; ++iteration)
    add(expected, mean_of(shapes, ranks, iteration));
  on_ranks(ranks, Backend::memory, [&](const Group& group) {
    auto hook = make();
    GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0));
    Tensors sums;
    for (int iteration = 0; iteration < iterations + zeros; ++iteration) {
      Tensors gradients = gradients_of(shapes, group.rank(), iteration);
      if (iteration >= iterations)
        for (at::Tensor& gradient : gradients) gradient.zero_();
      add(sums, reduce(hook, group, bucket, gradients));
      // After the gradients, not everything has been sent.
      EXPECT_TRUE(iteration + 1 != iterations || !at::allclose(sums[0], expected[0], 1e-3, 1e-3));
    }
    expect_close(sums, expected);
  });
}

// Trains a Net for 300 steps on the outputs of a teacher. Returns its loss afterwards.
inline double loss_after_training(const Group& group, std::shared_ptr<CommunicationHook> hook,
                                  const Options& options, double momentum) {
  Net teacher(7);
  auto net = std::make_shared<Net>();
  DistributedDataParallel ddp{group, net, options};
  ddp.set_hook(std::move(hook));
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(momentum));
  for (int step = 0; step < 300; ++step) {
    Batch batch = Batch::of_step(step, 2, 8).part(group.rank(), 2);
    batch.target = teacher.forward(batch.data).detach();
    train_step(optimizer, ddp, batch);
  }
  const Batch test = Batch::of_step(1000, 1, 256);
  return torch::mse_loss(net->forward(test.data), teacher.forward(test.data)).item<double>();
}

// The gradients of one bucket in two buckets, of which the later one is reduced first.
class InTwoBuckets {
 public:
  InTwoBuckets(const Group& group, const Tensors& like, std::size_t middle)
      : group_(group),
        low_(bucket_for(group, {like.begin(), like.begin() + static_cast<std::ptrdiff_t>(middle)}, 1, 0)),
        high_(
            bucket_for(group, {like.begin() + static_cast<std::ptrdiff_t>(middle), like.end()}, 0, middle)) {}
  Tensors reduce(CommunicationHook& hook, const Tensors& gradients) {
    const std::size_t middle = low_.gradients.size();
    for (std::size_t i = 0; i < gradients.size(); ++i)
      (i < middle ? low_.gradients[i] : high_.gradients[i - middle]).copy_(gradients[i]);
    hook.begin_iteration();
    testing::reduce(hook, group_, high_);
    testing::reduce(hook, group_, low_);
    Tensors results = low_.gradients;
    results.insert(results.end(), high_.gradients.begin(), high_.gradients.end());
    return results;
  }

 private:
  const Group& group_;
  GradientBucket low_, high_;
};

template <class F>
void expect_invalid(F f, const std::string& text) {
  expect_error(f, ErrorKind::invalid_argument, {text});
}

// --- Adasum as a recursion over the ranks ---

// The inner product of the real and imaginary parts.
inline double real_product(const at::Tensor& a, const at::Tensor& b) {
  return at::real((a * b.conj()).sum()).to(at::kDouble).item<double>();
}

inline at::Tensor adasum(const at::Tensor& a, const at::Tensor& b) {
  const auto share = [&](const at::Tensor& of) {
    const double square = real_product(of, of);
    return square == 0 ? of : of * (1 - real_product(a, b) / (2 * square));
  };
  return share(a) + share(b);
}

// Combines the gradients of the ranks from `first` on.
inline at::Tensor adasum(const Tensors& all, std::size_t first, std::size_t ranks) {
  if (ranks == 1) return all[first];
  return adasum(adasum(all, first, ranks / 2), adasum(all, first + ranks / 2, ranks / 2));
}

}  // namespace weft::data_parallel::testing
