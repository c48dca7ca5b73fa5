#include <weft/parallel/data_parallel/hooks/model_averager.h>
#include <weft/parallel/data_parallel/hooks/post_local_sgd_hook.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::post_local_sgd_hook_test {
namespace {

using namespace testing;

const Shapes shapes = {{4, 3}, {5}};

// Four ranks in two subgroups.
class PostLocalSgd : public OfRanks<4> {};

Group half_of(const Group& group) { return group.split(group.rank() / 2).get().value(); }

TEST_F(PostLocalSgd, AveragesWithinTheSubgroupFromTheStartOn) {
  on_ranks(groups, [&](const Group& group) {
    const Group half = half_of(group);
    for (const at::ScalarType dtype : {at::kDouble, at::kComplexDouble}) {
      PostLocalSgdHook hook(2, half), resumed(2, half);
      GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0, dtype));
      const int first = group.rank() / 2 * 2;
      for (int iteration = 0; iteration < 6; ++iteration) {
        if (iteration == 4) copy_state(hook, resumed);
        expect_close(reduce(iteration < 4 ? hook : resumed, group, bucket,
                            gradients_of(shapes, group.rank(), iteration, dtype)),
                     iteration < 2 ? mean_of(shapes, 4, iteration, dtype)
                                   : mean_of_ranks(shapes, first, first + 2, iteration, dtype));
      }
    }
  });
}

TEST_F(PostLocalSgd, AveragesNothingWithoutASubgroup) {
  on_ranks(groups, [&](const Group& group) {
    PostLocalSgdHook hook(1, std::nullopt);
    GradientBucket bucket = bucket_for(group, gradients_of(shapes, 0, 0));
    for (int iteration = 0; iteration < 3; ++iteration) {
      const Tensors own = gradients_of(shapes, group.rank(), iteration);
      expect_close(reduce(hook, group, bucket, own), iteration < 1 ? mean_of(shapes, 4, iteration) : own);
    }
  });
}

// Against copies of the model in one process, one for each subgroup.
TEST_F(PostLocalSgd, TrainsLikeAveragedCopies) {
  constexpr int start = 3, period = 4, steps = 13;
  // At first one copy trains on the whole batch, and later one copy for each half.
  std::vector<std::unique_ptr<Net>> copies;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers;
  for (int half = 0; half < 2; ++half) {
    copies.push_back(std::make_unique<Net>());
    optimizers.push_back(std::make_unique<torch::optim::SGD>(copies.back()->parameters(), 0.1));
  }
  std::vector<std::vector<Tensors>> expected;  // indexed by step and half
  for (int step = 0; step < steps; ++step) {
    const Batch all = Batch::of_step(step, 4);
    for (std::size_t half = 0; half < 2; ++half)
      train_step(*optimizers[half], *copies[half], step < start ? all : all.part(static_cast<int>(half), 2));
    if (step >= start && (step + 1 - start) % period == 0) {
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < copies[0]->parameters().size(); ++i) {
        at::Tensor a = copies[0]->parameters()[i], b = copies[1]->parameters()[i];
        const at::Tensor average = (a + b) / 2;
        a.copy_(average), b.copy_(average);
      }
    }
    expected.push_back({values_of(*copies[0]), values_of(*copies[1])});
  }
  on_ranks(groups, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
    ddp.set_hook(std::make_shared<PostLocalSgdHook>(start, half_of(group)));
    PeriodicModelAverager averager({{period, group}}, start);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < steps; ++step) {
      train_step(optimizer, ddp, Batch::of_step(step, 4).part(group.rank(), 4));
      averager.step(net->parameters());
      const auto& now = expected[static_cast<std::size_t>(step)];
      expect_close(values_of(*net), now[static_cast<std::size_t>(group.rank() / 2)]);
    }
  });
}

TEST_F(PostLocalSgd, RefusesInvalidOptions) {
  expect_invalid([&] { PostLocalSgdHook(-1, groups[0]); },
                 "PostLocalSgdHook: start_iteration -1, expected 0 or more");
}

}  // namespace
}  // namespace weft::data_parallel::post_local_sgd_hook_test
