// A model whose parameters, gradients and optimizer state exceed the limit of a process trains on four.
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/checkpoint/weights.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/weights/deferred.h>
#include <weft/rpc/job/job.h>

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <deque>
#include <fstream>

#include "tests/parallel/collectives/company.h"
#include "tests/support/child.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/torch_python.h"

namespace weft::sharded::memory_limit_process_test {
namespace {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::int64_t width = 1024, blocks = 24;  // 96 MiB of parameters; with gradients and AdamW 384 MiB
constexpr std::size_t training_limit = 320 * MiB;  // of address space, in addition to that of the program

// Limits the address space, as `ulimit -v` does.
void set_limit(std::size_t limit = training_limit) {
  mallopt(M_ARENA_MAX, 1);  // each additional arena reserves 64 MiB of addresses
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + limit;
  rlimit to{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &to), 0);
  to.rlim_cur = bytes;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &to), 0);
}

struct Chain : torch::nn::Module {
  Chain() {
    torch::manual_seed(1);
    for (std::int64_t i = 0; i < blocks; ++i)
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};

std::string train(const std::function<at::Tensor(const at::Tensor&)>& forward,
                  const std::function<void()>& step) {
  double first = 0, last = 0;
  for (int i = 0; i < 4; ++i) {
    const at::Tensor loss = forward(at::ones({2, width})).sub(1).square().mean();
    loss.backward();
    step();
    last = loss.item<double>();
    if (i == 0) first = last;
  }
  return last < first ? "trained" : "did not learn";
}

using Say = std::function<void(const std::string&)>;

void alone(const Say& say) {
  Chain model;
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-4));
  say(train([&](const at::Tensor& x) { return model.forward(x); },
            [&] {
              optimizer.step();
              optimizer.zero_grad();
            }));
}

void sharded(const collectives::Group& group, const Say& say) {
  FullyShardedDataParallel fsdp{group, std::make_shared<Chain>(), {.block = "layers.*"}};
  FullyShardedOptimizer optimizer(fsdp, torch::optim::AdamWOptions(1e-4));
  say(train([&](const at::Tensor& x) { return fsdp.forward(x); },
            [&] {
              optimizer.step();
              optimizer.zero_grad();
            }));
}

// Returns the body of a process that reports the lines of run(say), or the error.
template <class F>
auto body_of(F run) {
  return [run](int pipe) {
    const Say say = [pipe](const std::string& text) { test::say(pipe, text); };
    try {
      at::set_num_threads(1);
      run(say);
    } catch (const std::exception& error) {
      say(std::string("failed: ") + error.what());
    }
  };
}

TEST(MemoryLimits, AModelTooLargeForAProcessTrainsOnFour) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer reserves more addresses than any limit";
#endif
  test::Child one(body_of([](const Say& say) {
    set_limit();
    alone(say);
  }));
  const std::string failed = one.line();
  EXPECT_NE(failed.find("can't allocate memory"), std::string::npos) << failed;
  one.kill();

  constexpr int ranks = 4;
  const test::FileJobStore store;
  std::deque<test::Child> members;
  for (int rank = 0; rank < ranks; ++rank)
    members.emplace_back(body_of([&store, rank](const Say& say) {
      rpc::Job job(collectives::testing::options_in_process(store.url, rank, ranks),
                   collectives::testing::company_layers());
      job.join().get();
      collectives::GroupOptions in_group;
      in_group.shared_memory = false;  // which reserves addresses
      const auto group = collectives::Group::create(job.agent(), in_group).get();
      set_limit();
      sharded(group, say);
      group.barrier().get();
    }));
  for (test::Child& member : members) EXPECT_EQ(member.line(), "trained");
  for (test::Child& member : members) member.kill();
}

// A module that is larger than a rank's memory is constructed, loaded and saved: at most the rank's share,
// one block, and 10 %.
TEST(MemoryLimits, ADeferredModelNeedsAShareAndABlock) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer reserves more addresses than any limit";
#endif
  constexpr int ranks = 4;
  constexpr std::size_t block = width * width * sizeof(float), model = blocks * block;
  constexpr std::size_t share = 2 * model / ranks;  // parameters and gradients
  constexpr std::size_t peak = (share + block) * 11 / 10;
  static_assert(peak + 64 * MiB < model + share);
  const test::FileJobStore store;
  const test::TemporaryFolder folder;
  const auto file = std::filesystem::path(folder.path()) / "model.safetensors";
  std::deque<test::Child> members;
  for (int rank = 0; rank < ranks; ++rank)
    members.emplace_back(body_of([&, rank](const Say& say) {
      rpc::Job job(collectives::testing::options_in_process(store.url, rank, ranks),
                   collectives::testing::company_layers());
      job.join().get();
      collectives::GroupOptions in_group;
      in_group.shared_memory = false;  // which reserves addresses
      const auto group = collectives::Group::create(job.agent(), in_group).get();
      set_limit(peak + 64 * MiB);  // for what is not tensors
      test::CountingAllocator allocator;
      torch::manual_seed(1);  // as the constructor, which is not recorded
      const auto [chain, values] = weights::deferred([] { return std::make_shared<Chain>(); });
      std::optional<FullyShardedDataParallel<Chain>> fsdp;
      fsdp.emplace(group, chain, Options{.block = "layers.*", .values = values});
      const auto expect_peak = [&](const std::string& what) {
        const std::size_t bytes = allocator.take_peak();
        say(bytes <= peak ? what : what + " needs " + std::to_string(bytes) + " bytes");
      };
      expect_peak("construction");
      set_limit(std::size_t{1} << 40);  // files are mapped
      SlicedState state;
      fsdp->add_to(state, "");
      save_weights(group, state, file);
      expect_peak("saving");
      load_weights(group, state, file);
      expect_peak("loading");
      group.barrier().get();
      fsdp.reset();
      state = {};
    }));
  for (test::Child& member : members)
    for (const char* what : {"construction", "saving", "loading"}) EXPECT_EQ(member.line(), what);
  for (test::Child& member : members) member.kill();
  const auto saved = weights::open_source(file);
  torch::manual_seed(1);
  const Chain whole;
  for (const auto& each : whole.named_parameters())
    EXPECT_TRUE(at::equal(saved->view(each.key()), each.value())) << each.key();
}

}  // namespace
}  // namespace weft::sharded::memory_limit_process_test
