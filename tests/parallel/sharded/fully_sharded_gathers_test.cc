// ShardedModule::gather() of some blocks, and on one rank.
#include "tests/parallel/sharded/models.h"

#include <future>
#include <stdexcept>

namespace weft::sharded::fully_sharded_gathers_test {
namespace {

using namespace testing;

// The parameters that are whole: their names, without the last part.
std::vector<std::string> whole_in(const torch::nn::Module& module) {
  const Model expected;
  const auto values = expected.named_parameters();
  std::vector<std::string> names;
  for (const auto& entry : module.named_parameters()) {
    bool is_whole = true;
    try {
      EXPECT_TRUE(at::equal(entry.value(), values[entry.key()])) << entry.key();
    } catch (const c10::Error&) {
      is_whole = false;
    }
    const std::string of = entry.key().substr(0, entry.key().rfind('.'));
    if (is_whole && (names.empty() || names.back() != of)) names.push_back(of);
  }
  return names;
}

using Names = std::vector<std::string>;
const Names all_names{
    "stem",          "layers.0.norm",   "layers.0.linear", "layers.1.norm", "layers.1.linear",
    "layers.2.norm", "layers.2.linear", "head.used",       "head.extra"};

class PartialGathersOfRanks : public ::testing::TestWithParam<std::tuple<int, bool>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, PartialGathersOfRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Bool()));

TEST_P(PartialGathersOfRanks, HaveTheBlocksThatMatch) {
  const auto [ranks, on_last] = GetParam();
  on_ranks(ranks, [&, ranks = ranks, on_last = on_last](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    EXPECT_EQ(fsdp.blocks(), (Names{"layers.0", "layers.1", "layers.2", "head"}));
    const std::optional<int> rank = on_last ? std::optional(ranks - 1) : std::nullopt;
    const auto expect_whole = [&](const Names& blocks, const Names& expected) {
      {
        const auto guard = fsdp.gather({.blocks = blocks, .rank = rank});
        EXPECT_EQ(whole_in(*model), rank.value_or(group.rank()) == group.rank() ? expected : Names());
      }
      EXPECT_EQ(whole_in(*model), Names());
    };
    expect_whole({"layers.1"}, {"layers.1.norm", "layers.1.linear"});
    expect_whole({""}, {"stem"});
    expect_whole({"head", "layers.[02]"}, {"layers.0.norm", "layers.0.linear", "layers.2.norm",
                                           "layers.2.linear", "head.used", "head.extra"});
    expect_whole({}, all_names);
    own_loss(fsdp).backward();
    expect_whole({"head"}, {"head.used", "head.extra"});
  });
}

TEST(PartialGathers, NeedTheMemoryOfTheirBlocks) {
  constexpr int ranks = 2, layers = 20;
  on_ranks(ranks, [&](const Group& group) {
    const auto bytes_with = [&](const GatherOptions& options) {
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(layers), {.block = "layers.*"}};
      const std::size_t before = fsdp.bytes();
      const auto guard = fsdp.gather(options);
      return fsdp.bytes() - before;
    };
    const std::size_t one = bytes_with({.blocks = {"layers.3"}}), all = bytes_with({});
    EXPECT_GT(one, 0U);
    EXPECT_LT(one * layers, all);
    EXPECT_EQ(bytes_with({.rank = 0}), group.rank() == 0 ? all : 0U);
  });
}

TEST(PartialGathers, KeepChangesOfTheirBlocks) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    Model expected;
    const auto change = [](Model& of) {
      const at::NoGradGuard no_grad;
      of.head->extra->bias.mul_(2);
    };
    {
      const auto lost = fsdp.gather({.blocks = {"head"}});
      change(*model);
    }
    expect_parts(fsdp, expected, 0);
    {
      const auto inner = fsdp.gather({.blocks = {"layers.*"}});
      const auto kept = fsdp.gather({.changes = Changes::kept, .blocks = {"head"}});
      change(*model);
      model->named_parameters()["layers.0.linear.bias"].detach().zero_();  // is lost
    }
    change(expected);
    expect_parts(fsdp, expected, 0);
  });
}

// Other blocks are gathered for a forward and split again. A parameter that the program replaces keeps its
// new values, also if its block is not gathered.
TEST(PartialGathers, AllowForwardsAndReplacedParameters) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    Model expected;
    const at::Tensor bias = at::full({3}, 0.5, at::kDouble);
    {
      const at::NoGradGuard no_grad;
      expected.head->used->bias.copy_(bias);
      model->head->used->bias.set_data(bias.clone());
    }
    const Batch batch = Batch::of_step(0, 1);
    {
      const auto guard = fsdp.gather({.blocks = {"layers.1"}});
      expect_parts(fsdp, expected, 0);
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 2; ++i) expect_close({fsdp.forward(batch.data)}, {expected.forward(batch.data)});
      EXPECT_EQ(whole_in(*model), (Names{"layers.1.norm", "layers.1.linear"}));
    }
    expect_parts(fsdp, expected, 0);
    loss_of(expected.forward(batch.data), batch.target).backward();
    loss_of(fsdp.forward(batch.data), batch.target).backward();
    expect_gradients(fsdp, expected);
  });
}

TEST(PartialGathers, KeepNoChangesOfOneRank) {
  for (const int ranks : {1, 2})
    on_ranks(ranks, [&](const Group& group) {
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
      expect_error([&] { const auto guard = fsdp.gather({.changes = Changes::kept, .rank = 0}); },
                   "gather(): changes on one rank cannot be kept");
    });
}

TEST(PartialGathers, RefuseInvalidUseOnAllRanks) {
  on_ranks(2, [&](const Group& group) {
    FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
    const auto refuse = [&](const GatherOptions& options, const std::string& error) {
      expect_error([&] { const auto guard = fsdp.gather(options); }, error);
    };
    refuse({.blocks = {"layers.3"}}, "gather(): no block matches \"layers.3\"");
    refuse({.rank = 2}, "gather(): there is no rank 2, expected 0 to 1");
    // On one rank only.
    const bool is_first = group.rank() == 0;
    refuse({.blocks = {is_first ? "layers.3" : "layers.2"}},
           is_first ? "no block matches \"layers.3\""
                    : "rank 0 has other blocks, another root or other changes than rank 1");
    refuse({.blocks = {is_first ? "layers.1" : "layers.2"}},
           is_first ? "rank 1 has other blocks, another root or other changes than rank 0"
                    : "rank 0 has other blocks");
    refuse({.rank = group.rank()}, "has other blocks, another root");
    refuse({.changes = is_first ? Changes::kept : Changes::lost},
           "has other blocks, another root or other changes");
    {
      const auto guard = fsdp.gather({.blocks = {"head"}, .rank = 0});
      refuse({}, "a gather() on one rank together with another gather()");
      expect_error([&] { (void)own_loss(fsdp); }, "a forward within a gather() on one rank");
    }
    {
      const auto guard = fsdp.gather({.blocks = {"head"}});
      refuse({.rank = 0}, "a gather() on one rank together with another gather()");
      expect_error([&] { own_loss(fsdp).backward(); }, "backward within gather()");
    }
  });
}

TEST(PartialGathers, LoseReplacedParametersOnAllRanks) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    {
      const auto guard = fsdp.gather({.rank = 0});
      for (at::Tensor& parameter : model->parameters())
        parameter.set_data(at::full(parameter.sizes(), 7.0, at::kDouble));
    }
    expect_parts(fsdp, Model(), 0);
    const auto guard = fsdp.gather();
    const Model expected;
    for (const auto& parameter : model->named_parameters())
      EXPECT_TRUE(at::equal(parameter.value(), expected.named_parameters()[parameter.key()]))
          << parameter.key();
  });
}

// The gradients of the inputs need the blocks of all ranks.
TEST(PartialGathers, RefuseGradientsOfInputsOnOneRank) {
  for (const int ranks : {1, 2})
    on_ranks(ranks, [&](const Group& group) {
      FullyShardedDataParallel fsdp{group, std::make_shared<Model>(), {.block = "layers.*"}};
      const at::Tensor data = Batch::of_step(0, 1).data.clone().set_requires_grad(true);
      const at::Tensor loss = fsdp.forward(data).sum();
      const auto guard = fsdp.gather({.blocks = {"head"}, .rank = 0});
      expect_error([&] { (void)torch::autograd::grad({loss}, {data}); }, "backward within gather()");
    });
}

// The forward of rank 0 fails while it gathers a block that rank 1 does not gather.
TEST(PartialGathers, EndAfterAForwardThatThrows) {
  std::promise<void> failed;
  on_ranks(2, [&](const Group& group) {
    const bool is_first = group.rank() == 0;
    torch::nn::Sequential model(torch::nn::Functional([&](const at::Tensor& x) {
                                  if (!is_first) failed.get_future().wait();
                                  return x.clone();
                                }),
                                torch::nn::Linear(3, 3), torch::nn::Functional([&](const at::Tensor& x) {
                                  if (is_first) throw std::runtime_error("out of memory");
                                  return x.clone();
                                }),
                                torch::nn::Linear(3, 3));
    FullyShardedDataParallel fsdp{group, model, {.block = "*"}};
    const auto run = [&] {
      const auto guard = fsdp.gather({.blocks = {"1"}});
      const at::NoGradGuard no_grad;  // so that the forward waits for its collectives
      (void)fsdp.forward(at::ones({2, 3}));
    };
    if (is_first) {
      EXPECT_THROW(run(), std::runtime_error);
      failed.set_value();
    } else {
      expect_error(run, "rank 0: a forward of the module threw an exception");
    }
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_gathers_test
