#include <weft/dist_optim/local/owned_parameters.h>
#include <weft/rpc/core/error.h>

#include <atomic>
#include <cmath>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/dist_optim/local/owned_parameters_support.h"
#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::local_owned_parameters_test {
namespace {

using torch::optim::SGDOptions;

const bool one_thread = [] { return at::set_num_threads(1), true; }();

constexpr double rate = 0.125;
const PassKey pass_a{0, 1}, pass_b{0, 2}, pass_c{0, 3};

// The layers of the trap: a convolution saves its weight, a linear layer saves a view of its weight, a batch
// norm has buffers.
struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3)))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(3))};
  torch::nn::Conv2d second{register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, 3)))};
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(8, 2))};

  Net() { to(at::kDouble); }
  at::Tensor loss(const at::Tensor& input) {
    return linear(second(norm(conv(input)).relu()).flatten(1)).pow(2).sum();
  }
};

std::shared_ptr<Net> copy(const Net& net) {
  auto result = std::make_shared<Net>();
  at::NoGradGuard no_grad;
  auto from = net.parameters(), to = result->parameters();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  from = net.buffers(), to = result->buffers();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  return result;
}

at::Tensor input(int seed) {
  torch::manual_seed(seed);
  return torch::randn({2, 1, 6, 6}, at::kDouble);
}

Gradients gradients_of(const at::Tensor& loss, const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> leaves;
  for (const Parameter& parameter : parameters) leaves.push_back(parameter.tensor);
  auto found = torch::autograd::grad({loss}, leaves);
  Gradients gradients;
  for (std::size_t i = 0; i < found.size(); ++i) gradients[i] = found[i];
  return gradients;
}

std::vector<at::Tensor> values(const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> result;
  for (const Parameter& parameter : parameters) result.push_back(parameter.tensor.detach().clone());
  return result;
}

bool equal(const Gradients& left, const Gradients& right) {
  for (const auto& [index, gradient] : left) {
    if (!torch::equal(gradient, right.at(index))) return false;
  }
  return left.size() == right.size();
}

rpc::ErrorKind kind_of(const std::exception_ptr& error, const std::string& expected_text = "") {
  if (!error) {
    ADD_FAILURE() << "there is no error";
    return rpc::ErrorKind::internal;
  }
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& found) {
    EXPECT_NE(std::string(found.what()).find(expected_text), std::string::npos) << found.what();
    return found.kind();
  }
}

struct Outcome {
  bool done = false;
  std::exception_ptr error;
  std::uint64_t version = 0;
};

// A module with its OwnedParameters, and the operations of the layer above on behalf of passes.
struct Served {
  explicit Served(StepMode mode, const std::vector<std::string>& trainers,
                  OptimizerSpec spec = SGDOptions(rate)) {
    for (const std::string& trainer : trainers) owned.register_trainer(trainer, spec, mode);
  }

  std::shared_ptr<Outcome> admit(const std::string& trainer, PassKey pass) {
    auto outcome = std::make_shared<Outcome>();
    owned.admit(trainer, pass, [outcome](std::exception_ptr error) {
      EXPECT_FALSE(outcome->done) << "called twice";
      *outcome = {true, error, 0};
    });
    return outcome;
  }
  at::Tensor forward(const std::string& trainer, PassKey pass, const at::Tensor& data) {
    EXPECT_TRUE(admit(trainer, pass)->done);
    auto reading = owned.read(pass);
    return net->loss(data);
  }
  Gradients backward(PassKey pass, const at::Tensor& loss) {
    auto reading = owned.read(pass);
    return gradients_of(loss, owned.parameters());
  }
  std::shared_ptr<Outcome> step(const std::string& trainer, std::vector<PassGradients> passes) {
    auto outcome = std::make_shared<Outcome>();
    owned.step(trainer, std::move(passes), [outcome](std::exception_ptr error, std::uint64_t version) {
      EXPECT_FALSE(outcome->done) << "called twice";
      *outcome = {true, error, version};
    });
    return outcome;
  }
  // Checks that the parameters are `before` less the rate times these gradients.
  void expect_stepped(const std::vector<at::Tensor>& before, const std::vector<Gradients>& gradients) {
    for (std::size_t i = 0; i < before.size(); ++i) {
      at::Tensor expected = before[i];
      for (const Gradients& each : gradients) expected = expected - rate * each.at(i);
      EXPECT_TRUE(torch::allclose(owned.parameters()[i].tensor, expected, 0, 1e-12))
          << owned.parameters()[i].name;
    }
  }

  std::shared_ptr<Net> net = [] { return torch::manual_seed(3), std::make_shared<Net>(); }();
  OwnedParameters owned{parameters_of(*net)};
};

// ---- the trap: A forward; B forward, backward, step; A backward

TEST(Trap, FreeAppliesAGradientOfMixedWeights) {
  Served served(dist_optim::hogwild, {"a", "b"});
  auto old_net = copy(*served.net);
  auto loss_a = served.forward("a", pass_a, input(1));
  auto gradients_b = served.backward(pass_b, served.forward("b", pass_b, input(2)));
  auto stepped_b = served.step("b", {{pass_b, gradients_b}});
  ASSERT_TRUE(stepped_b->done && !stepped_b->error);
  auto new_net = copy(*served.net);
  auto gradients_a = served.backward(pass_a, loss_a);
  EXPECT_FALSE(equal(gradients_a, gradients_of(old_net->loss(input(1)), parameters_of(*old_net))));
  EXPECT_FALSE(equal(gradients_a, gradients_of(new_net->loss(input(1)), parameters_of(*new_net))));
  auto stepped_a = served.step("a", {{pass_a, gradients_a}});
  ASSERT_TRUE(stepped_a->done && !stepped_a->error);
  const auto stats = served.owned.stats();
  EXPECT_EQ(stats.copied_bytes, 0u);
  EXPECT_EQ(stats.version, 2u);
  EXPECT_EQ(stats.staleness, (std::map<std::uint64_t, std::uint64_t>{{0, 1}, {1, 1}}));
  EXPECT_EQ(stats.open_passes, 0u);
  EXPECT_EQ(stats.live_versions, 1u);
}

// ---- steps

Gradients ones(const Served& served, double scale = 1) {
  Gradients gradients;
  for (const Parameter& parameter : served.owned.parameters()) {
    gradients[gradients.size()] = torch::full_like(parameter.tensor.detach(), scale);
  }
  return gradients;
}

TEST(OwnedParameters, CopiesOnlyVersionsThatAnotherPassReadsAndFreesUnreadOnes) {
  Served served(bounded_staleness(3), {"a", "b"});
  std::uint64_t bytes = 0;
  for (const Parameter& parameter : served.owned.parameters()) bytes += parameter.tensor.nbytes();
  const at::Tensor& weight = served.owned.parameters()[0].tensor;
  const void* first = weight.data_ptr();
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  EXPECT_EQ(weight.data_ptr(), first) << "in place";

  served.admit("b", pass_b);
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  EXPECT_NE(weight.data_ptr(), first) << "the module shows the newest version";
  EXPECT_EQ(served.owned.stats().copied_bytes, bytes);
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  EXPECT_EQ(served.owned.stats().copied_bytes, bytes) << "b reads an older version, not this one";
  {
    auto reading = served.owned.read(pass_b);
    EXPECT_EQ(weight.data_ptr(), first);
    served.owned.release(pass_b);
    EXPECT_EQ(served.owned.stats().live_versions, 2u) << "a reader is still inside";
  }
  EXPECT_NE(weight.data_ptr(), first) << "nobody needs the old one any more";
  EXPECT_EQ(served.owned.stats().live_versions, 1u);

  // The next copy reuses the freed storages, unless something still refers to them.
  served.admit("b", pass_b);
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  EXPECT_EQ(weight.data_ptr(), first);
  const void* second = [&] {
    auto reading = served.owned.read(pass_b);
    return weight.data_ptr();
  }();
  at::Tensor kept = [&] {
    auto reading = served.owned.read(pass_b);
    return weight.detach().view({-1});
  }();
  auto kept_values = kept.clone();
  served.owned.release(pass_b);
  served.admit("b", pass_c);
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  EXPECT_NE(weight.data_ptr(), second);
  EXPECT_TRUE(torch::equal(kept, kept_values));
}

TEST(OwnedParameters, AStepWithoutGradientsChangesNothingButEndsItsPasses) {
  Served served(bounded_staleness(0), {"a", "b"}, SGDOptions(rate).weight_decay(0.5));
  auto before = values(served.owned.parameters());
  served.admit("a", pass_a);
  auto waiting = served.admit("b", pass_b);
  EXPECT_FALSE(waiting->done);
  auto stepped = served.step("a", {{pass_a, {{0, at::Tensor()}}}, {pass_c, {}}});
  EXPECT_TRUE(stepped->done && !stepped->error);
  EXPECT_EQ(stepped->version, 0u);
  EXPECT_TRUE(waiting->done && !waiting->error);
  served.expect_stepped(before, {});
}

TEST(OwnedParameters, ARefusedStepChangesNothing) {
  Served served(bounded_staleness(1), {"a", "b"});
  auto before = values(served.owned.parameters());
  served.admit("a", pass_a);
  Gradients wrong = ones(served);
  wrong[3] = torch::zeros({7}, at::kDouble);
  auto refused = served.step("a", {{pass_a, wrong}});
  ASSERT_TRUE(refused->done);
  EXPECT_EQ(kind_of(refused->error, served.owned.parameters()[3].name), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of(served.step("stranger", {{pass_a, ones(served)}})->error, "stranger"),
            rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of(served.step("a", {{pass_c, ones(served)}})->error, to_string(pass_c)),
            rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of(served.step("b", {{pass_a, ones(served)}})->error), rpc::ErrorKind::invalid_argument);
  served.expect_stepped(before, {});
  EXPECT_FALSE(served.step("a", {{pass_a, ones(served)}})->error) << "the pass is as it was";
  EXPECT_EQ(kind_of(served.step("a", {{pass_a, ones(served)}})->error), rpc::ErrorKind::failed_precondition)
      << "stepped once";
  served.expect_stepped(before, {ones(served)});
}

// ---- reading

TEST(OwnedParameters, LetsOnlyAdmittedPassesRead) {
  Served served(bounded_staleness(1), {"a", "b"});
  refusal(rpc::ErrorKind::failed_precondition, [&] { served.owned.read(pass_a); }, to_string(pass_a));
  served.admit("a", pass_a);
  served.owned.read(pass_a);
  served.step("a", {{pass_a, ones(served)}});
  refusal(rpc::ErrorKind::failed_precondition, [&] { served.owned.read(pass_a); });
  auto unused = served.owned.read_newest();
}

TEST(OwnedParameters, AStepWaitsForTheReadersOfItsObjectExceptInFree) {
  for (StepMode mode : {bounded_staleness(1), dist_optim::hogwild}) {
    Served served(mode, {"a", "b"});
    bool hogwild = mode == dist_optim::hogwild;
    served.admit("a", pass_a);
    served.admit("b", pass_b);
    std::promise<void> inside, stepped;
    std::jthread reader([&] {
      auto reading = served.owned.read(pass_b);
      inside.set_value();
      if (hogwild) return stepped.get_future().wait();
      for (int i = 0; i < 5000; ++i) {  // enough time for a step that does not wait
        std::this_thread::yield();
        ASSERT_EQ(served.owned.stats().version, 0u);
      }
    });
    inside.get_future().wait();
    auto outcome = served.step("a", {{pass_a, ones(served)}});
    EXPECT_TRUE(outcome->done && !outcome->error);
    stepped.set_value();
  }
}

TEST(OwnedParameters, PassesOfATrainerWithoutAnOptimizerReadOneVersion) {
  Served served(bounded_staleness(0), {"a"});
  auto untouched = copy(*served.net);
  auto loss = served.forward("visitor", pass_b, input(1));
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  EXPECT_TRUE(equal(served.backward(pass_b, loss),
                    gradients_of(untouched->loss(input(1)), parameters_of(*untouched))));
}

// ---- admission

TEST(OwnedParameters, AdmitsWaitingPassesAsOthersStepOrEnd) {
  Served served(bounded_staleness(0), {"a", "b", "c"});
  served.admit("a", pass_a);
  auto b = served.admit("b", pass_b), b_again = served.admit("b", pass_b), c = served.admit("c", pass_c);
  EXPECT_FALSE(b->done || b_again->done || c->done);
  EXPECT_EQ(served.owned.stats().waiting_passes, 2u);
  served.step("a", {{pass_a, ones(served)}});
  EXPECT_TRUE(b->done && !b->error);
  EXPECT_TRUE(b_again->done && !b_again->error);
  EXPECT_FALSE(c->done);
  served.owned.release(pass_b);
  EXPECT_TRUE(c->done && !c->error);

  auto released = served.admit("b", pass_b);
  EXPECT_FALSE(released->done);
  served.owned.release(pass_b);
  EXPECT_EQ(kind_of(released->error, to_string(pass_b)), rpc::ErrorKind::cancelled);

  auto orphan = served.admit("b", pass_b);
  unregister_trainer(served.owned, "b", true);
  EXPECT_EQ(kind_of(orphan->error, "trainer b died"), rpc::ErrorKind::aborted);
  auto last = served.admit("a", pass_a);
  EXPECT_FALSE(last->done);
  unregister_trainer(served.owned, "c", true);  // its pass blocked the others
  EXPECT_TRUE(last->done && !last->error);
  EXPECT_EQ(kind_of(served.admit("b", pass_a)->error, "belongs to trainer a"),
            rpc::ErrorKind::invalid_argument);
}

// ---- trainers and rounds

TEST(OwnedParameters, RefusesAnotherOptimizerOrModeNamingBoth) {
  Served served(bounded_staleness(2), {"a"}, SGDOptions(0.1));
  refusal([&] { served.owned.register_trainer("b", SGDOptions(0.2), bounded_staleness(2)); }, "lr=0.2");
  refusal([&] { served.owned.register_trainer("b", SGDOptions(0.2), bounded_staleness(2)); }, "lr=0.1");
  refusal([&] { served.owned.register_trainer("b", SGDOptions(0.1), bounded_staleness(3)); },
          "bounded_staleness(3)");
  refusal([&] { served.owned.register_trainer("b", SGDOptions(0.1), synchronous); }, "bounded_staleness(2)");
  // a rate that a schedule has changed is not a different optimizer
  served.owned.optimizer().set_learning_rate(0.05);
  served.owned.register_trainer("b", SGDOptions(0.1), bounded_staleness(2));
  EXPECT_EQ(served.owned.optimizer().learning_rate(), 0.05);
}

TEST(OwnedParameters, ATrainerEndsWithItsLastHandle) {
  Served served(bounded_staleness(0), {"a", "a", "b"});
  served.admit("a", pass_a);
  auto b = served.admit("b", pass_b);
  unregister_trainer(served.owned, "a", false);
  EXPECT_FALSE(b->done);
  unregister_trainer(served.owned, "a", false);
  EXPECT_TRUE(b->done && !b->error);
  unregister_trainer(served.owned, "a", false);
}

TEST(OwnedParameters, ADeathFailsThePendingRoundAndAppliesNothing) {
  Served served(synchronous, {"a", "b", "c"});
  auto before = values(served.owned.parameters());
  served.admit("a", pass_a);
  served.admit("b", pass_b);
  auto a = served.step("a", {{pass_a, ones(served)}});
  EXPECT_FALSE(a->done);
  unregister_trainer(served.owned, "c", true);
  ASSERT_TRUE(a->done);
  EXPECT_EQ(kind_of(a->error, "trainer c died"), rpc::ErrorKind::aborted);
  auto b = served.step("b", {{pass_b, ones(served)}});
  ASSERT_TRUE(b->done);
  EXPECT_EQ(kind_of(b->error, "trainer c died"), rpc::ErrorKind::aborted);
  served.expect_stepped(before, {});
  // The passes are still valid, and both trainers continue.
  a = served.step("a", {{pass_a, ones(served)}});
  b = served.step("b", {{pass_b, ones(served)}});
  EXPECT_TRUE(a->done && !a->error && b->done && !b->error);
  served.expect_stepped(before, {ones(served), ones(served)});
}

TEST(OwnedParameters, ARoundContinuesWithoutATrainerThatLeft) {
  Served served(synchronous(3), {"a", "b", "c"});
  auto before = values(served.owned.parameters());
  served.admit("a", pass_a);
  served.admit("b", pass_b);
  auto a = served.step("a", {{pass_a, ones(served)}});
  auto b = served.step("b", {{pass_b, {}}});
  EXPECT_FALSE(a->done || b->done);
  unregister_trainer(served.owned, "c", false);
  EXPECT_TRUE(a->done && !a->error && b->done && !b->error);
  served.expect_stepped(before, {ones(served)});
}

TEST(OwnedParameters, APassOpenedAfterItsTrainersStepWaitsForTheRound) {
  Served served(synchronous, {"a", "b"});
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  auto next = served.admit("a", pass_c);
  EXPECT_FALSE(next->done) << "it would read what is about to be old";
  EXPECT_TRUE(served.admit("b", pass_b)->done);
  auto twice = served.step("a", {});
  EXPECT_EQ(kind_of(twice->error, "trainer a"), rpc::ErrorKind::failed_precondition);
  served.step("b", {{pass_b, ones(served)}});
  EXPECT_TRUE(next->done && !next->error);
  served.admit("b", pass_b);
  auto a = served.step("a", {{pass_c, ones(served)}});
  auto b = served.step("b", {{pass_b, ones(served)}});
  EXPECT_TRUE(a->done && !a->error && b->done && !b->error);
  EXPECT_EQ(b->version, 2u);
}

TEST(OwnedParameters, ASynchronousPassThatMissedItsRoundMayReadButNotStep) {
  Served served(synchronous, {"a"});
  auto untouched = copy(*served.net);
  auto late_loss = served.forward("late", pass_b, input(1));
  served.admit("a", pass_a);
  served.step("a", {{pass_a, ones(served)}});
  served.owned.register_trainer("late", SGDOptions(rate), synchronous);
  auto gradients = served.backward(pass_b, late_loss);
  EXPECT_TRUE(equal(gradients, gradients_of(untouched->loss(input(1)), parameters_of(*untouched))));
  auto late = served.step("late", {{pass_b, gradients}});
  EXPECT_EQ(kind_of(late->error, "1 step old"), rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(served.owned.stats().version, 1u);
}

// Trainer a alone completes a round, but a reader delays its end. Then b joins and steps. Either b took part
// in a's round, or its pass is too old for the next round. In the second case b must get an error.
TEST(OwnedParameters, AStepThatCameWhileARoundWasClosingIsNeverAppliedLate) {
  bool too_late = false;
  for (int i = 0; i < 1000 && !too_late; ++i) {
    Served served(synchronous, {"a"});
    auto before = values(served.owned.parameters());
    served.admit("a", pass_a);
    served.admit("b", pass_b);
    std::shared_ptr<Outcome> a, b;
    std::jthread first, second;  // closing a round waits for readers, so a reader must not step
    auto wait_for_arrival = [&](const std::string& trainer, std::uint64_t hi) {
      for (std::uint64_t n = 0; served.admit(trainer, {hi, n})->done; ++n) std::this_thread::yield();
    };
    {
      auto reading = served.owned.read_newest();
      first = std::jthread([&] { a = served.step("a", {{pass_a, ones(served)}}); });
      wait_for_arrival("a", 8);
      served.owned.register_trainer("b", SGDOptions(rate), synchronous);
      second = std::jthread([&] { b = served.step("b", {{pass_b, ones(served)}}); });
      wait_for_arrival("b", 9);
    }
    first.join();
    second.join();
    // b may have taken part, and the thread that closed the round for it may be a's. Both steps have ended by
    // now.
    ASSERT_TRUE(a->done && !a->error);
    ASSERT_TRUE(b->done);
    if (b->error) {
      too_late = true;
      EXPECT_EQ(kind_of(b->error, "1 step old"), rpc::ErrorKind::failed_precondition);
      served.expect_stepped(before, {ones(served)});
    }
  }
  EXPECT_TRUE(too_late);
}

// ---- many threads

// Each pass sees one version however often it reads. Every step is applied exactly once (all numbers are
// exact in binary). No trainer is more than k steps behind.
TEST(OwnedParameters, ServesManyThreadsWithStaleVersions) {
  torch::manual_seed(1);
  auto first = torch::zeros({16}, at::kDouble).requires_grad_(),
       second = torch::zeros({3}, at::kDouble).requires_grad_();
  OwnedParameters owned({{"first", first}, {"second", second}});
  constexpr int trainers = 4, steps = 50;
  std::vector<std::jthread> threads;
  for (int t = 0; t < trainers; ++t) {
    std::string trainer = "t" + std::to_string(t);
    owned.register_trainer(trainer, SGDOptions(1.0 / 64), bounded_staleness(2));
    threads.emplace_back([&, t, trainer] {
      for (std::uint64_t s = 0; s < steps; ++s) {
        PassKey pass{static_cast<std::uint64_t>(t), s};
        std::promise<void> admitted;
        owned.admit(trainer, pass, [&](std::exception_ptr error) {
          EXPECT_FALSE(error);
          admitted.set_value();
        });
        admitted.get_future().wait();
        std::optional<double> seen;
        for (int i = 0; i < 5; ++i) {
          auto reading = owned.read(pass);
          double value = first[i].item<double>();
          EXPECT_EQ(second[1].item<double>(), value);
          EXPECT_EQ(seen.value_or(value), value);
          seen = value;
        }
        Gradients gradients{{0, torch::ones({16}, at::kDouble)}, {1, torch::ones({3}, at::kDouble)}};
        owned.step(trainer, {{pass, gradients}},
                   [](std::exception_ptr error, std::uint64_t) { EXPECT_FALSE(error); });
      }
    });
  }
  threads.clear();
  auto stats = owned.stats();
  EXPECT_EQ(stats.version, static_cast<std::uint64_t>(trainers * steps));
  EXPECT_LE(stats.max_staleness(), 2u);
  EXPECT_EQ(stats.open_passes + stats.waiting_passes, 0u);
  EXPECT_EQ(stats.live_versions, 1u);
  EXPECT_EQ(first[7].item<double>(), -trainers * steps / 64.0);
}

TEST(OwnedParameters, ServesManyThreadsInRounds) {
  auto weight = torch::zeros({4}, at::kDouble).requires_grad_();
  OwnedParameters owned({{"weight", weight}});
  constexpr int trainers = 3, steps = 50;
  for (int t = 0; t < trainers; ++t)
    owned.register_trainer("t" + std::to_string(t), SGDOptions(1.0 / 64), synchronous(3));
  std::vector<std::jthread> threads;
  for (int t = 0; t < trainers; ++t) {
    threads.emplace_back([&, trainer = "t" + std::to_string(t), t] {
      for (std::uint64_t s = 0; s < steps; ++s) {
        PassKey pass{static_cast<std::uint64_t>(t), s};
        std::promise<void> admitted;
        owned.admit(trainer, pass, [&](std::exception_ptr) { admitted.set_value(); });
        admitted.get_future().wait();
        {
          auto reading = owned.read(pass);
          EXPECT_EQ(weight[0].item<double>(), -static_cast<double>(s) * trainers / 64.0);
        }
        std::promise<std::uint64_t> stepped;
        owned.step(trainer, {{pass, {{0, torch::ones({4}, at::kDouble)}}}},
                   [&](std::exception_ptr error, std::uint64_t version) {
                     EXPECT_FALSE(error);
                     stepped.set_value(version);
                   });
        EXPECT_EQ(stepped.get_future().get(), s + 1);
      }
      unregister_trainer(owned, trainer, false);
    });
  }
  threads.clear();
  EXPECT_EQ(owned.stats().version, static_cast<std::uint64_t>(steps));
}

TEST(OwnedParameters, ServesManyThreadsFreely) {
  auto weight = torch::zeros({4}, at::kDouble).requires_grad_();
  OwnedParameters owned({{"weight", weight}});
  constexpr int trainers = 3, steps = 100;
  for (int t = 0; t < trainers; ++t)
    owned.register_trainer("t" + std::to_string(t), SGDOptions(1.0 / 64), dist_optim::hogwild);
  std::vector<std::jthread> threads;
  for (int t = 0; t < trainers; ++t) {
    threads.emplace_back([&, trainer = "t" + std::to_string(t)] {
      for (std::uint64_t s = 0; s < steps; ++s) {
        auto reading = owned.read(pass_a);
        weight.sum().item<double>();
        owned.step(trainer, {{pass_a, {{0, torch::ones({4}, at::kDouble)}}}},
                   [](std::exception_ptr error, std::uint64_t) { EXPECT_FALSE(error); });
      }
    });
  }
  threads.clear();
  EXPECT_EQ(weight[0].item<double>(), -trainers * steps / 64.0);
  EXPECT_EQ(owned.stats().version, static_cast<std::uint64_t>(trainers * steps));
}

// ---- state

// One number that is stepped with the rate 1, and the trainers' parts of one round.
struct OneNumber {
  at::Tensor w = torch::zeros({1}, at::kDouble).requires_grad_();
  OwnedParameters owned{{{"w", w}}};
  std::uint64_t passes = 0;

  void join(const std::string& trainer, StepMode mode, const std::string& name = {}) {
    owned.register_trainer(trainer, SGDOptions(1), mode, name);
  }
  std::shared_ptr<Outcome> step(const std::string& trainer, double gradient) {
    const PassKey pass{1, ++passes};
    owned.admit(trainer, pass, [](const std::exception_ptr& error) { EXPECT_EQ(error, nullptr); });
    auto outcome = std::make_shared<Outcome>();
    owned.step(
        trainer, {{pass, {{0, torch::full({1}, gradient, at::kDouble)}}}},
        [outcome](std::exception_ptr error, std::uint64_t version) { *outcome = {true, error, version}; });
    return outcome;
  }
  double value() const { return w.item<double>(); }
};

TEST(OwnedParameters, ARoundIsSummedInTheOrderOfTheTrainersNames) {
  OneNumber one;
  one.join("1", synchronous(3), "c");
  one.join("2", synchronous(3), "b");
  one.join("3", synchronous(3), "a");
  one.step("2", -1e16);
  one.step("1", 1);
  EXPECT_TRUE(one.step("3", 1e16)->done);
  EXPECT_EQ(one.value(), -1) << "by the keys: 1 - 1e16 + 1e16 = 0";
}

TEST(OwnedParameters, ARoundMayApplyTheMean) {
  OneNumber one;
  one.join("a", synchronous_mean(2));
  refusal([&] { one.join("b", synchronous(2)); }, "synchronous_mean(2)");
  one.join("b", synchronous_mean(2));
  one.step("a", 1);
  EXPECT_TRUE(one.step("b", 3)->done);
  EXPECT_EQ(one.value(), -2);
}

TEST(OwnedParameters, HaveNoOptimizerBeforeATrainerRegistersOne) {
  OneNumber one;
  refusal(rpc::ErrorKind::failed_precondition, [&] { one.owned.optimizer().state(); });
  refusal(rpc::ErrorKind::failed_precondition, [&] { one.owned.optimizer().set_learning_rate(1); });
}

TEST(OwnedParameters, TheNumberOfTrainersChangesBetweenRounds) {
  OneNumber one;
  for (const char* trainer : {"a", "b", "c"}) one.join(trainer, synchronous(3));
  const auto first = one.step("a", 1);
  refusal(rpc::ErrorKind::failed_precondition, [&] { one.owned.set_mode(synchronous(4)); }, "in flight");
  unregister_trainer(one.owned, "c", true);
  EXPECT_EQ(kind_of(first->error, "trainer c died"), rpc::ErrorKind::aborted);
  refusal([&] { one.owned.set_mode(synchronous(1)); }, "2 trainers");
  refusal(
      rpc::ErrorKind::failed_precondition, [&] { one.owned.set_mode(bounded_staleness(1)); },
      "synchronous(3)");
  one.owned.set_mode(synchronous(2));
  one.step("a", 1);
  EXPECT_TRUE(one.step("b", 1)->done);
  EXPECT_EQ(one.value(), -2);
  one.owned.set_mode(synchronous(3));
  one.join("d", synchronous(3));
  one.step("a", 1);
  EXPECT_FALSE(one.step("b", 1)->done);
  EXPECT_TRUE(one.step("d", 1)->done);
  EXPECT_EQ(one.value(), -5);
}

// Each step of Adam with a constant gradient changes the number by the rate.
TEST(OwnedParameters, ASnapshotIsOfOneVersionWhileAnotherThreadSteps) {
  OneNumber one;
  one.owned.register_trainer("a", torch::optim::AdamOptions(1), dist_optim::hogwild);
  one.step("a", 1);
  std::atomic<bool> over{false};
  std::thread stepping([&] {
    for (int i = 0; i < 20'000; ++i) one.step("a", 1);
    over = true;
  });
  bool same = true;
  while (same && !over) {
    double value = 0;
    const OptimizerState state = one.owned.snapshot([&] { value = one.value(); }).optimizer;
    same = std::lround(-value) == state.tensors.at("w/step").item<std::int64_t>();
  }
  stepping.join();
  EXPECT_TRUE(same);
}

TEST(OwnedParameters, TheFirstTrainerAfterAllLeftChoosesOptimizerAndMode) {
  OneNumber one;
  one.join("a", synchronous(3));
  unregister_trainer(one.owned, "a", true);
  one.join("a", synchronous(2));
  one.join("b", synchronous(2));
  one.step("a", 1);
  EXPECT_TRUE(one.step("b", 1)->done);
  EXPECT_EQ(one.value(), -2);
  for (const char* trainer : {"a", "b"}) unregister_trainer(one.owned, trainer, false);
  one.owned.register_trainer("c", SGDOptions(0.5), bounded_staleness(1));
  EXPECT_TRUE(one.step("c", 2)->done);
  EXPECT_EQ(one.value(), -3);
}

}  // namespace
}  // namespace weft::dist_optim::local_owned_parameters_test
