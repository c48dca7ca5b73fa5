#include <weft/parallel/data_parallel/join.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/parallel/data_parallel/hooks/adasum_hook.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/post_local_sgd_hook.h>
#include <weft/parallel/training/broadcast_state.h>

#include <numeric>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::join_test {
namespace {

using namespace testing;

// Returns the batches of a rank. Ranks have different numbers of batches.
std::vector<Batch> batches_of(int rank, int count) {
  std::vector<Batch> batches;
  for (int step = 0; step < count; ++step) batches.push_back(Batch::of_step(1000 * rank + step, 1));
  return batches;
}

// Trains in one process as all ranks do together, with the average over `divisor(active)` ranks.
void train_alone(Net& net, const std::vector<int>& counts, const std::function<int(int)>& divisor) {
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
  const int steps = *std::max_element(counts.begin(), counts.end());
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    int active = 0;
    for (const int count : counts) active += step < count;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      if (step >= counts[rank]) continue;
      const Batch batch = Batch::of_step(static_cast<int>(1000 * rank) + step, 1);
      (torch::mse_loss(net.forward(batch.data), batch.target) / divisor(active)).backward();
    }
    optimizer.step();
  }
}

class Uneven : public ::testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Counts, Uneven,
                         ::testing::Values(std::vector{3, 5}, std::vector{5, 3}, std::vector{0, 2},
                                           std::vector{2, 4, 1}, std::vector{3, 3, 3, 4}));

TEST_P(Uneven, RanksTrainUntilTheLongestOneEnds) {
  const std::vector<int>& counts = GetParam();
  const int ranks = static_cast<int>(counts.size());
  for (const bool by_active : {false, true}) {
    Net alone;
    train_alone(alone, counts, [&](int active) { return by_active ? active : ranks; });
    Company company(ranks, Backend::memory);
    on_ranks(company.groups(), [&](const Group& group) {
      auto net = std::make_shared<Net>(group.rank() + 1);
      DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      auto batches = batches_of(group.rank(), counts[static_cast<std::size_t>(group.rank())]);
      int seen = 0;
      for (auto& batch : ddp.join(batches, {.divide_by_active = by_active})) {
        ++seen;
        train_step(optimizer, ddp, batch);
      }
      EXPECT_EQ(seen, counts[static_cast<std::size_t>(group.rank())]);
      expect_close(values_of(*net), values_of(alone));
    });
  }
}

// Rank 0 has one batch, rank 1 has three, of which the second is not reduced.
TEST(Join, AStepIsShadowedAfterEachReduction) {
  struct Recorder : Joinable {
    void shadow_forward(int) override { calls += "forward "; }
    void shadow_backward() override { calls += "backward "; }
    void shadow_step(int source) override {
      calls += "step of " + std::to_string(source) + " ";
      without_batch = ddp->ranks_without_batch();
    }
    void finish_join(int) override { calls += "end"; }
    std::string calls;
    std::vector<int> without_batch;
    Replica* ddp = nullptr;
  };
  on_ranks(2, Backend::memory, [&](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>(), Options{.bucket_bytes = {200}}};
    Recorder recorder;
    recorder.ddp = &ddp;
    auto batches = batches_of(group.rank(), 1 + 2 * group.rank());
    int step = 0;
    for (auto& batch : ddp.join(batches, {}, {&recorder})) {
      const auto run = [&] { torch::mse_loss(ddp.forward(batch.data), batch.target).backward(); };
      if (++step == 2) {
        const auto guard = ddp.no_sync();
        run();
      } else {
        run();
      }
      EXPECT_EQ(ddp.ranks_without_batch(), step == 1 ? std::vector<int>{} : std::vector{0});
    }
    EXPECT_EQ(ddp.ranks_without_batch(), std::vector<int>{});
    EXPECT_EQ(recorder.calls, group.rank() == 0 ? "forward backward forward backward step of 1 end" : "end");
    EXPECT_EQ(recorder.without_batch, group.rank() == 0 ? std::vector{0} : std::vector<int>{});
  });
}

// zero_grad() is the last call in the loop. If the shadows of the first epoch left gradients, they would be
// added.
TEST(Join, ASecondEpochStartsWithoutGradients) {
  for (const bool is_static : {false, true}) {
    const std::vector<int> counts = is_static ? std::vector{0, 2} : std::vector{2, 3};
    Net alone;
    for (const auto& epoch : {counts, std::vector{3, 3}}) train_alone(alone, epoch, [](int) { return 2; });
    on_ranks(2, Backend::memory, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}, .static_graph = is_static}};
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
      for (const auto& epoch : {counts, std::vector{3, 3}}) {
        auto batches = batches_of(group.rank(), epoch[static_cast<std::size_t>(group.rank())]);
        for (auto& batch : ddp.join(batches)) {
          torch::mse_loss(ddp.forward(batch.data), batch.target).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
      }
      expect_close(values_of(*net), values_of(alone));
    });
  }
}

// Two batches make an update. In the second case rank 0 has only the first batch of its last update. That
// batch counts.
class Accumulation : public ::testing::TestWithParam<std::vector<int>> {};
INSTANTIATE_TEST_SUITE_P(Counts, Accumulation, ::testing::Values(std::vector{2, 4}, std::vector{3, 4}));

TEST_P(Accumulation, IsReducedWithTheLastBatch) {
  const std::vector<int>& counts = GetParam();
  Net alone;
  torch::optim::SGD alone_optimizer(alone.parameters(), torch::optim::SGDOptions(0.1));
  for (int update = 0; update < 2; ++update) {
    alone_optimizer.zero_grad();
    for (int rank = 0; rank < 2; ++rank)
      for (const int step : {2 * update, 2 * update + 1}) {
        if (step >= counts[static_cast<std::size_t>(rank)]) continue;
        const Batch batch = Batch::of_step(1000 * rank + step, 1);
        (torch::mse_loss(alone.forward(batch.data), batch.target) / 2).backward();
      }
    alone_optimizer.step();
  }
  on_ranks(2, Backend::memory, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    auto batches = batches_of(group.rank(), counts[static_cast<std::size_t>(group.rank())]);
    int step = 0;
    for (auto& batch : ddp.join(batches)) {
      if (step++ % 2 == 0) {
        optimizer.zero_grad();
        const auto guard = ddp.no_sync();
        torch::mse_loss(ddp.forward(batch.data), batch.target).backward();
      } else {
        torch::mse_loss(ddp.forward(batch.data), batch.target).backward();
        optimizer.step();
      }
    }
    expect_close(values_of(*net), values_of(alone));
  });
}

// Both ranks unfreeze a parameter after the first iteration. Rank 0 has no batch for the second one.
TEST(Join, ARankWithoutABatchFollowsWhatTheProgramHasUnfrozen) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    net->middle->weight.requires_grad_(false);
    DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
    std::vector<at::Tensor> batches(static_cast<std::size_t>(1 + group.rank()), Batch::of_step(0, 2).data);
    for (auto& batch : ddp.join(batches)) {
      ddp.forward(batch).sum().backward();
      net->middle->weight.requires_grad_(true);
    }
    EXPECT_EQ(net->middle->weight.grad().defined(), group.rank() == 1);
  });
}

// Rank 0 has no batch for the second iteration, and fails while it shadows it.
TEST(Join, AFailureOfAShadowFailsTheBackwardOfTheOtherRank) {
  struct FailsSecond : CommunicationHook {
    explicit FailsSecond(bool fails) : fails_(fails) {}
    void begin_iteration() override { ++iterations_; }
    std::optional<rpc::Future<void>> run(const Group& group, GradientBucket& bucket, int step) override {
      if (fails_ && iterations_ == 2)
        throw rpc::Error(ErrorKind::failed_precondition, "FailsSecond: planted");
      return step == 0 ? std::optional(all_reduce_average(group, bucket.buffer)) : std::nullopt;
    }
    const bool fails_;
    int iterations_ = 0;
  };
  on_ranks(2, Backend::memory, [&](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>(), Options{.bucket_bytes = {200}}};
    ddp.set_hook(std::make_shared<FailsSecond>(group.rank() == 0));
    auto batches = batches_of(group.rank(), 1 + group.rank());
    const auto train = [&] {
      for (auto& batch : ddp.join(batches)) torch::mse_loss(ddp.forward(batch.data), batch.target).backward();
    };
    expect_error(train, {group.rank() == 0 ? "planted" : "backward of rank 0 failed"});
  });
}

// The last rank has one batch, the others have two. Rank i computes the gradient i + 1.
TEST(Join, RanksWithoutABatchDoNotCountInTheResultOfAHook) {
  struct Case {
    int ranks;
    std::function<std::shared_ptr<CommunicationHook>(const Group&)> make;
    std::function<double(int rank)> expected;  // in the second iteration
  };
  const auto in_pairs = [](const Group& group) {
    return std::make_shared<PostLocalSgdHook>(0, group.split(group.rank() / 2).get());
  };
  const auto of_pairs = [](int rank) { return rank < 2 ? 1.5 : 3; };
  const std::vector<Case> cases{
      {3, [](const Group&) { return nullptr; }, [](int) { return 1.5; }},
      {4, in_pairs, of_pairs},
      {4, [&](const Group& group) { return std::make_shared<CastHook>(at::kFloat, in_pairs(group)); },
       of_pairs},
      {4, [](const Group&) { return std::make_shared<PostLocalSgdHook>(0, std::nullopt); },
       [](int rank) { return rank == 3 ? 0 : rank + 1; }},
      {4, [](const Group&) { return std::make_shared<PostLocalSgdHook>(9, std::nullopt); },
       [](int) { return 2; }},
      {2, [](const Group&) { return std::make_shared<AdasumHook>(); }, [](int) { return 1; }},
  };
  struct Weight : torch::nn::Module {
    Weight() { w = register_parameter("w", at::ones({3}, at::kDouble)); }
    at::Tensor forward(const at::Tensor& x) { return (w * x).sum(); }
    at::Tensor w;
  };
  for (const Case& each : cases) {
    Company company(each.ranks, Backend::memory, std::make_unique<test::InProcessJobStore>(), nullptr,
                    nullptr, [](int) { return dist_autograd::layers(); });
    on_ranks(company.groups(), [&](const Group& group) {
      for (const bool in_pass : {false, true}) {
        auto weight = std::make_shared<Weight>();
        DistributedDataParallel ddp{group, weight};
        const auto hook = each.make(group);
        SCOPED_TRACE(hook == nullptr ? "none" : hook->name());
        ddp.set_hook(hook);
        std::vector<at::Tensor> batches(group.rank() + 1 == group.size() ? 1 : 2,
                                        at::full({3}, group.rank() + 1, at::kDouble));
        at::Tensor last;
        for (auto& batch : ddp.join(batches, {.divide_by_active = true})) {
          weight->zero_grad();
          if (in_pass) {
            dist_autograd::Pass pass{company.agent(group.rank())};
            pass.backward(ddp.forward(pass, batch)).get();
            last = pass.gradient(weight->w).clone();
          } else {
            ddp.forward(batch).backward();
            last = weight->w.grad().clone();
          }
        }
        if (group.rank() + 1 == group.size()) continue;
        expect_close({last}, {at::full({3}, each.expected(group.rank()), at::kDouble)});
      }
    });
  }
}

TEST(Join, AllowsOneRangeAtATime) {
  on_ranks(1, Backend::memory, [&](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>()};
    std::vector<int> some{1, 2};
    {
      const auto range = ddp.join(some);
      EXPECT_EQ(test::kind_of([&] { (void)ddp.join(some); }), ErrorKind::failed_precondition);
    }
    for (const int each : ddp.join(some)) (void)each;
  });
}

TEST(Join, TheStateOfAnOptimizerCanBeBroadcast) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int epoch = 0; epoch < 2; ++epoch) {
      auto batches = batches_of(group.rank(), 1 + 2 * group.rank());
      for (auto& batch : ddp.join(batches)) train_step(optimizer, ddp, batch);
      training::broadcast_optimizer_state(group, optimizer, ddp.join_source());
    }
    EXPECT_EQ(ddp.join_source(), 1);
    train_step(optimizer, ddp, Batch::of_step(group.rank(), 1));
    const auto all = group.all_gather_object(net->last->weight.sum().item<double>()).get();
    EXPECT_EQ(all[0], all[1]);
  });
}

TEST(Join, BuffersAreThoseOfARankWithABatch) {
  struct Normalized : torch::nn::Module {
    Normalized() { norm = register_module("norm", torch::nn::BatchNorm1d(5)); }
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
    torch::nn::BatchNorm1d norm{nullptr};
  };
  on_ranks(2, Backend::memory, [&](const Group& group) {
    auto module = std::make_shared<Normalized>();
    DistributedDataParallel ddp{group, module};
    std::vector<at::Tensor> batches(static_cast<std::size_t>(1 + 2 * group.rank()), at::ones({4, 5}));
    for (auto& batch : ddp.join(batches)) ddp.forward(batch).sum().backward();
    // Rank 1 made three updates, and rank 0 only the first one.
    EXPECT_EQ(module->norm->num_batches_tracked.item<std::int64_t>(), 3);
  });
}

struct Numbers : torch::data::Dataset<Numbers> {
  torch::data::Example<> get(std::size_t index) override {
    return {at::full({5}, static_cast<double>(index), at::kDouble), at::zeros({3}, at::kDouble)};
  }
  torch::optional<std::size_t> size() const override { return 10; }
};

TEST(Join, AcceptsALoaderOfLibTorch) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>()};
    // Rank 0 has 3 batches of 2, rank 1 has 5.
    auto loader = torch::data::make_data_loader(
        Numbers().map(torch::data::transforms::Stack<>()),
        torch::data::samplers::SequentialSampler(static_cast<std::size_t>(6 + 4 * group.rank())), 2);
    int seen = 0;
    for (auto& batch : ddp.join(*loader)) {
      torch::mse_loss(ddp.forward(batch.data), batch.target).backward();
      ++seen;
    }
    EXPECT_EQ(seen, 3 + 2 * group.rank());
  });
}

}  // namespace
}  // namespace weft::data_parallel::join_test
