// Data parallel training in distributed autograd: replicas whose gradients a dist_autograd::Pass computes.
#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/pass.h>
#include <weft/parallel/collectives/functional.h>
#include <weft/parallel/data_parallel/hooks/adasum_hook.h>
#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/power_sgd_hook.h>
#include <weft/parallel/data_parallel/hooks/quantization_hook.h>
#include <weft/parallel/data_parallel/hooks/top_k_hook.h>
#include <weft/parallel/data_parallel/sync_batch_norm.h>
#include <weft/rref/rref.h>

#include <latch>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::pass_reduction_test {
namespace {

using namespace testing;
using data_parallel::testing::gradients_of;
using dist_autograd::Pass;
using dist_autograd::PassId;

// Returns the gradients of a module's parameters in a pass.
std::vector<at::Tensor> gradients_of(const Pass& pass, const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) gradients.push_back(pass.gradient(parameter));
  return gradients;
}

// Returns the gradients of these leaves in a pass, on the worker that serves the call.
std::vector<at::Tensor> gradients_at(rpc::CallContext& call, const PassId& pass,
                                     const std::vector<at::Tensor>& leaves) {
  const auto state = dist_autograd::AutogradLayer::of(*call.host())->find(pass);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(state->gradient(leaf));
  return gradients;
}

Options small() { return {.bucket_bytes = {200, 400}}; }

// A layer that the passes of all ranks reach on one worker.
struct Shared {
  explicit Shared(at::Tensor initial) : w(initial.clone().set_requires_grad(true)) {}
  at::Tensor forward(at::Tensor x) { return torch::tanh(x.mm(w)); }
  at::Tensor gradient(rpc::CallContext& call, PassId pass) { return gradients_at(call, pass, {w})[0]; }
  using Service =
      rpc::Service<"test.shared", rpc::Constructor<at::Tensor>, rpc::Method<"forward", &Shared::forward>,
                   rpc::Method<"gradient", &Shared::gradient>>;
  at::Tensor w;
};

class InAPass : public ::testing::Test {
 protected:
  explicit InAPass(int size = 2) : ranks(size) {}

  // Runs f(group, agent) for each rank.
  template <class F>
  void on_all(F f) {
    on_ranks(groups, [&](const Group& group) { f(group, company.agent(group.rank())); });
  }

  const int ranks;
  Company company{ranks,   Backend::memory, std::make_unique<test::InProcessJobStore>(),
                  nullptr, nullptr,         [](int) { return dist_autograd::layers(); }};
  std::vector<Group> groups = company.groups();
};

class InAPassOfFour : public InAPass {
 protected:
  InAPassOfFour() : InAPass(4) {}
};

TEST_F(InAPassOfFour, RanksMayHaveDifferentNumbersOfBatches) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, small()};
    std::vector<Batch> batches;
    for (int step = 0; step <= group.rank(); ++step)
      batches.push_back(Batch::of_step(step, ranks).part(group.rank(), ranks));
    std::vector<at::Tensor> in_passes, locals;
    for (Batch& batch : ddp.join(batches)) {
      net->zero_grad();
      torch::mse_loss(ddp.forward(batch.data), batch.target).backward();
      for (const at::Tensor& gradient : gradients_of(*net)) locals.push_back(gradient);
    }
    for (Batch& batch : ddp.join(batches)) {
      Pass pass{agent};
      pass.backward(torch::mse_loss(ddp.forward(pass, batch.data), batch.target)).get();
      for (const at::Tensor& gradient : gradients_of(pass, *net)) in_passes.push_back(gradient.clone());
    }
    expect_close(in_passes, locals);
  });
}

// The passes of all ranks use the same remote layer. Its gradients are separate for each pass.
TEST_F(InAPassOfFour, RemoteLayersHaveTheGradientsOfTheirPass) {
  company.agent(3).allow_create<Shared>();
  on_all([&](const Group& group, rpc::Agent& agent) {
    const auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(group.rank()));
    const at::Tensor w = at::randn({5, 4}, generator, at::kDouble);
    const at::Tensor x = at::randn({6, 5}, generator, at::kDouble);
    torch::nn::Linear last(4, 1);
    last->to(at::kDouble);
    DistributedDataParallel ddp{group, last};
    const at::Tensor own = w.clone().set_requires_grad(true);
    ddp.forward(torch::tanh(x.mm(own))).sum().backward();
    const auto shared = rref::create<Shared>(agent.peer("worker3"), w);
    Pass pass{agent};
    pass.backward(ddp.forward(pass, shared.call<&Shared::forward>(pass, x).get()).sum()).get();
    expect_close(gradients_of(pass, *last), gradients_of(*last));
    expect_close({shared.call<&Shared::gradient>(pass.id()).get()}, {own.grad()});
  });
}

// A node of rank 0 waits on the only handler thread of its agent, which the backward of rank 1 needs.
TEST_F(InAPass, RecordedCollectivesWaitOnHandlerThreads) {
  company.agent(0).allow_create<Shared>();
  const auto norm_groups = company.groups({.name = "norms"});
  on_all([&](const Group& group, rpc::Agent& agent) {
    const at::Tensor x = Batch::of_step(0, ranks).part(group.rank(), ranks).data,
                     w = at::ones({5, 4}, x.options());
    torch::nn::Sequential net(
        torch::nn::Linear(5, 5),
        SyncBatchNorm(torch::nn::BatchNormOptions(5), norm_groups[static_cast<std::size_t>(group.rank())]));
    net->to(at::kDouble);
    const auto forward = [&] { return collectives::functional::all_reduce(group, net->forward(x)); };
    const at::Tensor own = w.clone().set_requires_grad(true);
    const at::Tensor local = forward();
    (group.rank() == 0 ? local : torch::tanh(local.mm(own))).sum().backward();
    Pass pass{agent};
    at::Tensor output = forward();
    if (group.rank() == 1)
      output = rref::create<Shared>(agent.peer("worker0"), w).call<&Shared::forward>(pass, output).get();
    pass.backward(output.sum()).get();
    expect_close(gradients_of(pass, *net), gradients_of(*net));
  });
}

// A module of local layers between remote layers. Its forward takes the pass.
struct Hybrid : torch::nn::Module {
  Hybrid(rref::RRef<Shared> layer, rref::RRef<Shared> next)
      : remote(std::move(layer)), then(std::move(next)) {
    static std::mutex mutex;
    std::lock_guard lock(mutex);
    torch::manual_seed(4);
    first = register_module("first", torch::nn::Linear(5, 5));
    last = register_module("last", torch::nn::Linear(4, 3));
    to(at::kDouble);
  }
  at::Tensor between(const Pass& pass, const at::Tensor& x) {
    return then.call<&Shared::forward>(pass, remote.call<&Shared::forward>(pass, first(x)).get()).get();
  }
  at::Tensor forward(const Pass& pass, const at::Tensor& x) { return last(between(pass, x)); }
  rref::RRef<Shared> remote, then;
  torch::nn::Linear first{nullptr}, last{nullptr};
};

class Hybrids : public InAPassOfFour {
 protected:
  Hybrids() { company.agent(0).allow_create<Shared>(); }

  std::shared_ptr<Hybrid> hybrid(rpc::Agent& agent) const {
    return std::make_shared<Hybrid>(rref::create<Shared>(agent.peer("worker0"), w0),
                                    rref::create<Shared>(agent.peer("worker0"), w1));
  }
  // Computes in one process the mean over these ranks of the gradients of a loss.
  template <class Ranks>
  std::vector<at::Tensor> means(const Ranks& of, int divisor, int step = 0) const {
    torch::manual_seed(4);
    torch::nn::Linear first(5, 5), last(4, 3);
    first->to(at::kDouble), last->to(at::kDouble);
    for (const int rank : of) {
      const Batch batch = Batch::of_step(step, ranks).part(rank, ranks);
      const at::Tensor y = torch::tanh(torch::tanh(first(batch.data).mm(w0)).mm(w1));
      (torch::mse_loss(last(y), batch.target) / divisor).backward();
    }
    return {first->weight.grad(), first->bias.grad(), last->weight.grad(), last->bias.grad()};
  }

  const at::Tensor w0 = at::linspace(-1, 1, 20, at::kDouble).view({5, 4});
  const at::Tensor w1 = at::linspace(1, -0.5, 16, at::kDouble).view({4, 4});
};

TEST_F(Hybrids, AWholeModelIsReplicatedWithUnevenBatches) {
  const std::vector<std::vector<at::Tensor>> expected{means(std::vector{0, 1, 2, 3}, ranks, 0),
                                                      means(std::vector{2, 3}, ranks, 1)};
  on_all([&](const Group& group, rpc::Agent& agent) {
    const auto model = hybrid(agent);
    DistributedDataParallel ddp{group, model};
    std::vector<int> steps{0};
    if (group.rank() >= 2) steps.push_back(1);
    for (const int step : ddp.join(steps)) {
      const Batch batch = Batch::of_step(step, ranks).part(group.rank(), ranks);
      Pass pass{agent};
      pass.backward(torch::mse_loss(ddp.forward(pass, batch.data), batch.target)).get();
      expect_close(gradients_of(pass, *model), expected[static_cast<std::size_t>(step)]);
    }
  });
}

TEST_F(Hybrids, APartOfAModelIsReplicated) {
  const auto together = means(std::vector{0, 1, 2, 3}, ranks);
  std::vector<std::vector<at::Tensor>> expected;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = means(std::vector{rank}, 1);
    expected.push_back({own[0], own[1], together[2], together[3]});
  }
  on_all([&](const Group& group, rpc::Agent& agent) {
    const auto model = hybrid(agent);
    DistributedDataParallel last{group, model->last};
    const Batch batch = Batch::of_step(0, ranks).part(group.rank(), ranks);
    Pass pass{agent};
    const at::Tensor y = last.forward(pass, model->between(pass, batch.data));
    pass.backward(torch::mse_loss(y, batch.target)).get();
    expect_close(gradients_of(pass, *model), expected[static_cast<std::size_t>(group.rank())]);
  });
}

// --- Replicas that other workers call ---

struct Served {
  explicit Served(const Group& group) : net(std::make_shared<Net>()), ddp(group, net, small()) {}
  at::Tensor forward(rpc::CallContext& call, at::Tensor x) {
    Pass pass = Pass::of(call);
    (void)ddp.attach(pass, to_string(pass.id()));
    return ddp.forward(pass, x);
  }
  std::vector<at::Tensor> gradients(rpc::CallContext& call, PassId pass) {
    return gradients_at(call, pass, net->parameters());
  }
  using Service = rpc::Service<"test.served", rpc::Method<"forward", &Served::forward>,
                               rpc::Method<"gradients", &Served::gradients>>;
  std::shared_ptr<Net> net;
  DistributedDataParallel<Net> ddp;
};

// The workers 1 and 2 serve the replicas of a group, and worker 0 calls them.
template <class T>
class ServedBy : public InAPass {
 protected:
  ServedBy() : InAPass(3) {
    replicas.resize(3);
    on_all([&](const Group& group, rpc::Agent& agent) {
      const auto trained =
          group.split(group.rank() == 0 ? std::nullopt : std::optional(0), group.rank()).get();
      if (!trained) return;
      auto& replica = replicas[static_cast<std::size_t>(group.rank())];
      replica = std::make_shared<T>(*trained);
      agent.serve(replica);
    });
  }
  rpc::Peer worker(int rank) { return company.agent(0).peer("worker" + std::to_string(rank)); }

  std::vector<std::shared_ptr<T>> replicas;
};

class ServedReplicas : public ServedBy<Served> {
 protected:
  at::Tensor forward(const Pass& pass, int rank, const at::Tensor& x) {
    return worker(rank).call<&Served::forward>(pass, x).get();
  }
  void expect_means(const Pass& pass, const std::vector<at::Tensor>& inputs) {
    Net alone;
    for (const at::Tensor& x : inputs) (alone.forward(x).square().sum() / 2).backward();
    for (const int rank : {1, 2})
      expect_close(worker(rank).call<&Served::gradients>(pass.id()).get(), gradients_of(alone));
  }
};

TEST_F(ServedReplicas, MayBeReachedByTwoPassesInOppositeOrders) {
  const at::Tensor x = Batch::of_step(1, 1).data, y = Batch::of_step(2, 1).data;
  for (int round = 0; round < 5; ++round) {
    Pass one{company.agent(0)}, two{company.agent(0)};
    at::Tensor of_one = forward(one, 1, x).square().sum();
    at::Tensor of_two = forward(two, 1, y).square().sum();
    of_two = of_two + forward(two, 2, 2 * y).square().sum();
    of_one = of_one + forward(one, 2, 2 * x).square().sum();
    auto first = one.backward(of_one), second = two.backward(of_two);
    first.get();
    second.get();
    expect_means(one, {x, 2 * x});
    expect_means(two, {y, 2 * y});
  }
}

// A batch norm, whose buffers the ranks exchange before each forward.
struct ServedNorm {
  explicit ServedNorm(const Group& group) : norm(5), ddp(group, (norm->to(at::kDouble), norm)) {}
  rpc::Task<at::Tensor> forward(rpc::CallContext& call, at::Tensor x) {
    const Pass pass = Pass::of(call);
    co_await ddp.attach(pass, to_string(pass.id()));
    co_return ddp.forward(pass, x);
  }
  at::Tensor blocking(rpc::CallContext& call, at::Tensor x) { return ddp.forward(Pass::of(call), x); }
  std::vector<at::Tensor> gradients(rpc::CallContext& call, PassId pass) {
    return gradients_at(call, pass, norm->parameters());
  }
  using Service = rpc::Service<"test.served_norm", rpc::Method<"forward", &ServedNorm::forward>,
                               rpc::Method<"blocking", &ServedNorm::blocking>,
                               rpc::Method<"gradients", &ServedNorm::gradients>>;
  torch::nn::BatchNorm1d norm;
  DistributedDataParallel<torch::nn::BatchNorm1dImpl> ddp;
};

class ServedNorms : public ServedBy<ServedNorm> {
 protected:
  static at::Tensor input(int rank, int step) { return Batch::of_step(step, 2).part(rank - 1, 2).data; }
};

TEST_F(ServedNorms, AHandlerAwaitsTheExchangeOfBuffers) {
  torch::nn::BatchNorm1d first(5), second(5);
  first->to(at::kDouble), second->to(at::kDouble);
  for (int step = 0; step < 3; ++step) {
    Pass pass{company.agent(0)};
    std::vector<rpc::Future<at::Tensor>> outputs;
    for (const int rank : {2, 1})
      outputs.push_back(worker(rank).call<&ServedNorm::forward>(pass, input(rank, step)));
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (auto& output : outputs) loss = loss + output.get().pow(3).sum();
    pass.backward(loss).get();
    // The other rank starts with the statistics of the group's rank 0.
    for (const auto& [to, from] : {std::pair(second->running_mean, first->running_mean),
                                   std::pair(second->running_var, first->running_var)})
      to.copy_(from);
    first->zero_grad(), second->zero_grad();
    (first->forward(input(1, step)).pow(3).sum() / 2).backward();
    (second->forward(input(2, step)).pow(3).sum() / 2).backward();
    for (const int rank : {1, 2}) {
      const auto& norm = *replicas[static_cast<std::size_t>(rank)]->norm;
      const auto& alone = *(rank == 1 ? first : second);
      expect_close({norm.running_mean, norm.running_var}, {alone.running_mean, alone.running_var});
      expect_close(worker(rank).call<&ServedNorm::gradients>(pass.id()).get(),
                   {first->weight.grad() + second->weight.grad(), first->bias.grad() + second->bias.grad()});
    }
  }
}

TEST_F(ServedNorms, AHandlerThatWouldBlockIsToldWhatToAwait) {
  Pass pass{company.agent(0)};
  expect_error([&] { worker(1).call<&ServedNorm::blocking>(pass, input(1, 0)).get(); },
               {"co_await attach(pass)"});
}

// --- Parameters that a rank does not reach, failures, and the rest ---

TEST_F(InAPass, AParameterThatOneRankDoesNotReachGetsTheGradientOfTheOther) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, small()};
    const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
    for (const bool reached : {true, false}) {
      const bool all = reached && group.rank() == 1;
      net->zero_grad();
      torch::mse_loss(ddp.forward(batch.data, all), batch.target).backward();
      Pass pass{agent};
      pass.backward(torch::mse_loss(ddp.forward(pass, batch.data, all), batch.target)).get();
      EXPECT_EQ(pass.gradient(net->middle->weight).defined(), reached);
      EXPECT_EQ(net->middle->weight.grad().defined(), reached);
      for (const at::Tensor& parameter : net->parameters())
        if (parameter.grad().defined()) expect_close({pass.gradient(parameter)}, {parameter.grad()});
    }
  });
}

TEST_F(InAPass, BackwardsOverTheSameGraphAddUp) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, small()};
    const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
    Pass pass{agent};
    const at::Tensor loss = torch::mse_loss(ddp.forward(pass, batch.data), batch.target);
    pass.backward(loss, {}, {.retain_graph = true}).get();
    std::vector<at::Tensor> twice;
    for (const at::Tensor& gradient : gradients_of(pass, *net)) twice.push_back(2 * gradient);
    pass.backward(loss).get();
    expect_close(gradients_of(pass, *net), twice);
  });
}

// Each gradient is a multiple of ones, which every hook here reduces exactly. Adasum averages parallel
// gradients of the lengths 1 and 2 to 1.5, like the others.
struct Multiples : torch::nn::Module {
  Multiples() {
    for (int i = 0; i < 4; ++i)
      weights.push_back(register_parameter("w" + std::to_string(i), at::ones({16, 16})));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& weight : weights) sum = sum + (weight * x).sum();
    return sum;
  }
  std::vector<at::Tensor> weights;
};

TEST_F(InAPass, EachOfTwoPassesInFlightGetsItsOwnGradientsFromAHook) {
  const std::vector<std::function<std::shared_ptr<CommunicationHook>()>> hooks{
      [] { return nullptr; },
      [] { return std::make_shared<CastHook>(at::kBFloat16); },
      [] { return std::make_shared<QuantizationHook>(); },
      [] { return std::make_shared<TopKHook>(TopKOptions{.ratio = 1}); },
      [] { return std::make_shared<PowerSgdHook>(PowerSgdOptions{.start_iteration = 0}); },
      [] { return std::make_shared<AdasumHook>(); },
  };
  on_all([&](const Group& group, rpc::Agent& agent) {
    for (const bool narrow : {false, true})
      for (const auto& make : hooks) {
        Options options{.bucket_bytes = {1}};
        if (narrow) options.mixed_precision.reduction = at::kBFloat16;
        const auto model = std::make_shared<Multiples>();
        DistributedDataParallel ddp{group, model, options};
        const auto hook = make();
        SCOPED_TRACE(hook == nullptr ? "none" : hook->name());
        ddp.set_hook(hook);
        for (int round = 0; round < 3; ++round) {
          std::vector<Pass> passes;
          std::vector<rpc::Future<void>> done;
          std::vector<at::Tensor> losses;
          for (int pass = 1; pass <= 2; ++pass) {
            passes.emplace_back(agent);
            losses.push_back(ddp.forward(passes.back(), at::full({}, (group.rank() + 1) * pass, at::kFloat)));
          }
          for (std::size_t pass = 0; pass < 2; ++pass) done.push_back(passes[pass].backward(losses[pass]));
          for (auto& each : done) each.get();
          for (std::size_t pass = 0; pass < 2; ++pass)
            for (const at::Tensor& gradient : gradients_of(passes[pass], *model))
              expect_close({gradient}, {at::full({16, 16}, 1.5 * static_cast<double>(pass + 1), at::kFloat)},
                           1e-2);
        }
      }
  });
}

TEST_F(InAPass, ParametersMayBeFrozenAndUnfrozen) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    net->middle->weight.requires_grad_(false);
    DistributedDataParallel ddp{group, net, small()};
    const auto freeze = [](Net& of, int step) {
      of.middle->weight.requires_grad_(step == 1 || step == 2);
      of.first->bias.requires_grad_(step == 0 || step == 3);
    };
    for (int step = 0; step < 5; ++step) {  // in step 4, the layer that reaches a whole bucket is frozen
      Net alone;
      for (Net* const each : {net.get(), &alone}) {
        freeze(*each, step);
        each->last->weight.requires_grad_(step != 4);
        each->last->bias.requires_grad_(step != 4);
      }
      const Batch whole = Batch::of_step(step, 2), batch = whole.part(group.rank(), 2);
      torch::mse_loss(alone.forward(whole.data), whole.target).backward();
      Pass pass{agent};
      pass.backward(torch::mse_loss(ddp.forward(pass, batch.data), batch.target)).get();
      const auto own = gradients_of(pass, *net), expected = gradients_of(alone);
      for (std::size_t i = 0; i < own.size(); ++i) {
        ASSERT_EQ(own[i].defined(), expected[i].defined()) << i << " in step " << step;
        if (own[i].defined()) expect_close({own[i]}, {expected[i]});
      }
    }
  });
}

TEST_F(InAPass, AParameterThatOnlyOneRankUnfreezesIsRefusedOnBothRanks) {
  const auto hasty = company.groups({.timeout = std::chrono::seconds{20}});
  on_ranks(hasty, [&](const Group& group) {
    auto net = std::make_shared<Net>();
    net->middle->weight.requires_grad_(false);
    DistributedDataParallel ddp{group, net, small()};
    if (group.rank() == 1) net->middle->weight.requires_grad_(true);
    Pass pass{company.agent(group.rank())};
    const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
    const auto error =
        error_of([&] { pass.backward(torch::mse_loss(ddp.forward(pass, batch.data), batch.target)).get(); });
    ASSERT_TRUE(error);
    EXPECT_NE(error->kind(), ErrorKind::deadline_exceeded);
    expect_text(*error, {"the ranks reduce different parameters"});
  });
}

TEST_F(InAPass, AParameterThatIsUnfrozenWithinAPassIsRefused) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    net->middle->weight.requires_grad_(false);
    DistributedDataParallel ddp{group, net};
    const at::Tensor x = Batch::of_step(0, 1).data;
    Pass pass{agent};
    ddp.forward(pass, x);
    net->middle->weight.requires_grad_(true);
    expect_error([&] { ddp.forward(pass, x); }, ErrorKind::failed_precondition, {"middle.weight"});
  });
}

// The exchange of its buffer makes the first forward of a pass slow.
struct Buffered : torch::nn::Module {
  Buffered() { register_buffer("buffer", at::zeros({1})); }
  at::Tensor forward(const at::Tensor& x) { return x * 2; }
};

TEST_F(InAPass, TwoThreadsMayCallForwardOfASequenceInOnePass) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    torch::nn::Sequential layers(torch::nn::Linear(3, 3), Buffered(), torch::nn::Linear(3, 1));
    DistributedDataParallel ddp{group, layers};
    const at::Tensor x = at::full({1, 3}, group.rank() + 1, at::kFloat);
    (2 * ddp.forward(x)).sum().backward();
    for (int round = 0; round < 20; ++round) {
      Pass pass{agent};
      std::latch start(2);
      std::vector<at::Tensor> outputs(2);
      std::vector<std::optional<rpc::Error>> errors(2);
      const auto call = [&](std::size_t thread) {
        start.arrive_and_wait();
        errors[thread] = error_of([&] { outputs[thread] = ddp.forward(pass, x); });
      };
      std::thread other(call, 1);
      call(0);
      other.join();
      for (const auto& error : errors) ASSERT_FALSE(error) << error->what();
      pass.backward((outputs[0] + outputs[1]).sum()).get();
      expect_close(gradients_of(pass, *layers), gradients_of(*layers), 1e-5);
    }
  });
}

TEST_F(InAPass, BuffersAreBroadcastFromRankZero) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    torch::nn::BatchNorm1d norm(5);
    norm->to(at::kDouble);
    DistributedDataParallel ddp{group, norm};
    for (int step = 0; step < 2; ++step) {
      Pass pass{agent};
      pass.backward(ddp.forward(pass, Batch::of_step(step, 2).part(group.rank(), 2).data).square().sum())
          .get();
    }
    // The statistics of rank 0 after one step, followed by one step of this rank.
    torch::nn::BatchNorm1d alone(5);
    alone->to(at::kDouble);
    alone->forward(Batch::of_step(0, 2).part(0, 2).data);
    alone->forward(Batch::of_step(1, 2).part(group.rank(), 2).data);
    expect_close({norm->running_mean, norm->running_var}, {alone->running_mean, alone->running_var});
  });
}

TEST_F(InAPass, WithoutSyncAPassKeepsLocalGradients) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
    Net alone;
    torch::mse_loss(alone.forward(batch.data), batch.target).backward();
    const auto guard = ddp.no_sync();
    Pass pass{agent};
    pass.backward(torch::mse_loss(ddp.forward(pass, batch.data), batch.target)).get();
    expect_close(gradients_of(pass, *net), gradients_of(alone));
  });
}

TEST_F(InAPass, AFailedBackwardFailsThatOfTheOtherRank) {
  for (const bool after_the_module : {true, false}) {
    const auto of_round = company.groups();
    on_ranks(of_round, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net, small()};
      const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
      Pass pass{company.agent(group.rank())};
      const auto fails = [&](const at::Tensor& x) {
        if (group.rank() == 1)
          x.register_hook(
              [](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a planted fault"); });
        return x;
      };
      const at::Tensor x = batch.data.clone().set_requires_grad(true);
      at::Tensor y = ddp.forward(pass, after_the_module ? fails(x) : x);
      if (!after_the_module) y = fails(y);
      std::string error;
      try {
        pass.backward(torch::mse_loss(y, batch.target)).get();
      } catch (const std::exception& failure) {
        error = failure.what();
      }
      const char* const expected =
          group.rank() == 1 ? "a planted fault" : "failed on rank 1 before its gradients were reduced";
      EXPECT_NE(error.find(expected), std::string::npos) << error;
    });
  }
}

TEST_F(InAPass, AForwardWithoutThePassIsRefused) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    Pass pass{agent};
    expect_error([&] { pass.backward(ddp.forward(Batch::of_step(0, 1).data).sum()).get(); },
                 ErrorKind::failed_precondition, {"call forward(pass, ...)"});
  });
}

TEST_F(InAPass, ANamedPassWithinAJoinIsRefused) {
  on_all([&](const Group& group, rpc::Agent& agent) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    std::vector<int> steps{0};
    const auto joined = ddp.join(steps);
    Pass pass{agent};
    expect_error([&] { (void)ddp.attach(pass, "first"); }, ErrorKind::failed_precondition);
  });
}

}  // namespace
}  // namespace weft::data_parallel::pass_reduction_test
