// The collectives of a FullyShardedDataParallel and their order, as the groups' flight recorders have
// recorded them.
#include <weft/parallel/collectives/flight/flight_dump.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/parallel/sharded/models.h"

namespace weft::sharded::fully_sharded_schedule_test {
namespace {

using namespace testing;
using namespace std::chrono_literals;

constexpr int ranks = 2;

std::vector<collectives::FlightEntry> entries_of(const Group& group) {
  const Folder folder;
  (void)group.write_flight(folder.path);
  return collectives::read_flight_dumps(folder.path).dumps.at(0).records.entries;
}

std::size_t count(const Group& group, const std::string& operation) {
  const auto entries = entries_of(group);
  return static_cast<std::size_t>(std::count_if(
      entries.begin(), entries.end(), [&](const auto& entry) { return entry.text.starts_with(operation); }));
}

struct Counts {
  std::size_t gathers = 0, reductions = 0, replicas = 0;
  bool operator==(const Counts&) const = default;
  Counts operator-(const Counts& other) const {
    return {gathers - other.gathers, reductions - other.reductions, replicas - other.replicas};
  }
};
void PrintTo(const Counts& counts, std::ostream* out) {
  *out << counts.gathers << " gathers, " << counts.reductions << " reductions, " << counts.replicas
       << " over replicas";
}

// float64: orders, and which parameters have gradients, are exchanged in other types.
Counts counts_of(const ShardedModule& fsdp) {
  const ShardSetup& setup = fsdp.units().setup();
  return {count(setup.groups.gathers, "all_gather("), count(setup.groups.reductions, "reduce_scatter("),
          setup.groups.replicas ? count(*setup.groups.replicas, "all_reduce(avg, float64") : 0};
}

// Returns the collectives that f starts.
template <class F>
Counts counts_in(const ShardedModule& fsdp, F f) {
  const Counts before = counts_of(fsdp);
  f();
  return counts_of(fsdp) - before;
}

class FullyShardedSchedules : public ::testing::Test {
 protected:
  template <class F>
  void on_both_ranks(F f, int layers = 3) {
    on_ranks(ranks, [&](const Group& group) {
      for (const bool reshard : {true, false}) {
        const auto model = std::make_shared<Model>(layers);
        FullyShardedDataParallel fsdp{group, model, {.block = "layers.*", .reshard_after_forward = reshard}};
        const Batch part = Batch::of_step(0, ranks).part(group.rank(), ranks);
        f(fsdp, reshard, [&, part] { return loss_of(fsdp.forward(part.data), part.target); });
      }
    });
  }
};

// Frozen parameters of a unit are gathered apart, and not reduced.
TEST_F(FullyShardedSchedules, FrozenParametersAreNotReduced) {
  on_ranks(ranks, [&](const Group& group) {
    const auto model = std::make_shared<Model>();
    model->stem->bias.requires_grad_(false);
    for (at::Tensor& parameter : model->layers->ptr(1)->parameters()) parameter.requires_grad_(false);
    FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
    const Batch part = Batch::of_step(0, ranks).part(group.rank(), ranks);
    EXPECT_EQ(counts_in(fsdp, [&] { loss_of(fsdp.forward(part.data), part.target).backward(); }),
              (Counts{9, 4}));
  });
}

// The stem, three layers and the head. The last block stays whole between forward and backward.
TEST_F(FullyShardedSchedules, EachUnitIsGatheredForForwardAndForBackwardAndReducedOnce) {
  on_both_ranks([](auto& fsdp, bool reshard, auto loss) {
    for (int i = 0; i < 2; ++i) {
      at::Tensor value;
      EXPECT_EQ(counts_in(fsdp, [&] { value = loss(); }), (Counts{5, 0}));
      EXPECT_EQ(counts_in(fsdp, [&] { value.backward(); }), (Counts{reshard ? 3u : 0u, 5}));
    }
    EXPECT_EQ(counts_in(fsdp,
                        [&] {
                          const auto guard = fsdp.no_sync();
                          loss().backward();
                        }),
              (Counts{reshard ? 8u : 5u, 0}));
    EXPECT_EQ(counts_in(fsdp, [&] { loss().backward(); }), (Counts{reshard ? 8u : 5u, 5}));
    const at::NoGradGuard no_grad;
    EXPECT_EQ(counts_in(fsdp, [&] { (void)loss(); }), (Counts{5, 0}));
  });
}

// The order of gathers ("g") and reductions ("r") in a backward: the next block is gathered before the
// current one is reduced. The head is whole already. The stem is reduced last.
TEST_F(FullyShardedSchedules, BackwardGathersTheNextBlockBeforeItReducesTheCurrentOne) {
  on_both_ranks([](auto& fsdp, bool reshard, auto loss) {
    loss().backward();
    const at::Tensor value = loss();
    const auto gathers = entries_of(fsdp.units().setup().groups.gathers).size();
    const auto reductions = entries_of(fsdp.units().setup().groups.reductions).size();
    value.backward();
    std::multimap<std::int64_t, char> order;  // ordered by the time of the call
    const auto add = [&](const Group& group, std::size_t first, const char* operation) {
      const auto entries = entries_of(group);
      for (std::size_t i = first; i < entries.size(); ++i)
        if (entries[i].text.starts_with(operation))
          order.emplace(entries[i].begun, operation[0] == 'a' ? 'g' : 'r');
    };
    add(fsdp.units().setup().groups.gathers, gathers, "all_gather(");
    add(fsdp.units().setup().groups.reductions, reductions, "reduce_scatter(");
    std::string text;
    for (const auto& [time, what] : order) text += what;
    EXPECT_EQ(text, reshard ? "grgrgrrr" : "rrrrr");
  });
}

// A layer that calls a function in its forward and in its backward.
struct Probe : Layer {
  using Layer::Layer;
  at::Tensor forward(const at::Tensor& x) {
    during_forward();
    return Layer::forward(x);
  }
  std::function<void()> during_forward = [] {};
};

TEST_F(FullyShardedSchedules, CollectivesRunWhileBlocksCompute) {
  constexpr std::size_t blocks = 4;
  struct Chain : torch::nn::Module {
    Chain() {
      for (std::size_t i = 0; i < blocks; ++i)
        probes.push_back(register_module("block" + std::to_string(i), std::make_shared<Block<Probe>>(5)));
    }
    at::Tensor forward(at::Tensor x) {
      for (const auto& probe : probes) x = probe->forward(x);
      return x;
    }
    std::vector<std::shared_ptr<Block<Probe>>> probes;
  };
  on_ranks(ranks, [&](const Group& group) {
    const auto model = std::make_shared<Chain>();
    FullyShardedDataParallel fsdp{group, model};
    Counts begin;
    // A group notes a collective on its own thread, soon after the call. No other one starts in a probe.
    const auto expect_started = [&](const Counts& expected) {
      const auto deadline = std::chrono::steady_clock::now() + 30s;
      while (counts_of(fsdp) - begin != expected && std::chrono::steady_clock::now() < deadline)
        std::this_thread::yield();
      EXPECT_EQ(counts_of(fsdp) - begin, expected);
    };
    // Includes the next block, and the reduction of the previous one.
    const Counts forward[] = {{2, 0}, {3, 0}, {4, 0}, {4, 0}}, backward[] = {{3, 3}, {3, 2}, {2, 1}, {1, 0}};
    std::size_t probed = 0;
    for (std::size_t i = 0; i < blocks; ++i) {
      model->probes[i]->during_forward = [&, i] { expect_started(forward[i]), ++probed; };
      model->probes[i]->linear->bias.register_hook([&, i](const at::Tensor& gradient) {
        expect_started(backward[i]), ++probed;
        return gradient;
      });
    }
    for (int i = 0; i < 2; ++i) {
      begin = counts_of(fsdp);
      const at::Tensor loss = fsdp.forward(at::ones({2, 5})).sum();
      begin = counts_of(fsdp);
      loss.backward();
    }
    EXPECT_EQ(probed, 4 * blocks);
  });
}

TEST_F(FullyShardedSchedules, ReplicasReduceEachUnitOnce) {
  on_ranks(4, [&](const Group& all) {
    const auto mesh = two_replicas(all);
    FullyShardedDataParallel fsdp{mesh.group("shard"),
                                  std::make_shared<Model>(),
                                  {.block = "layers.*", .replicas = mesh.group("replicate")}};
    const Batch part = Batch::of_step(0, 4).part(all.rank(), 4);
    EXPECT_EQ(counts_in(fsdp, [&] { loss_of(fsdp.forward(part.data), part.target).backward(); }),
              (Counts{8, 5, 5}));
  });
}

TEST_F(FullyShardedSchedules, WithoutSyncGradientsAreLocal) {
  on_both_ranks([](auto& fsdp, bool, auto loss) {
    {
      const auto guard = fsdp.no_sync();
      {
        const auto inner = fsdp.no_sync();
        loss().backward();
      }
      loss().backward();
    }
    for (const at::Tensor& parameter : fsdp.parameters()) EXPECT_FALSE(parameter.grad().defined());
    const at::Tensor last = loss();  // outside of the guard, which applies to forwards
    const auto guard = fsdp.no_sync();
    last.backward();
    Model whole(3);
    const Batch batch = Batch::of_step(0, ranks);
    (3 * loss_of(whole.forward(batch.data), batch.target)).backward();
    expect_gradients(fsdp, whole);
  });
}

TEST_F(FullyShardedSchedules, RanksThatDifferInNoSyncAreNamed) {
  on_both_ranks([](auto& fsdp, bool, auto loss) {
    expect_error(
        [&] {
          if (fsdp.group().rank() == 0) return loss().backward();
          const auto guard = fsdp.no_sync();
          loss().backward();
        },
        ErrorKind::failed_precondition, "rank 1 has run a forward within no_sync(), rank 0 outside");
  });
}

TEST_F(FullyShardedSchedules, ABackwardOfForwardsWithinAndOutsideOfNoSyncIsRefused) {
  on_both_ranks([](auto& fsdp, bool, auto loss) {
    const at::Tensor first = loss();
    const auto guard = fsdp.no_sync();
    const at::Tensor both = first + loss();
    expect_error([&] { both.backward(); }, "within and outside of no_sync()");
  });
}

}  // namespace
}  // namespace weft::sharded::fully_sharded_schedule_test
