// Compares gradients of passes over dense and sparse (COO) tensors, by call and by remote, with those of one
// process.
#include <ATen/core/grad_mode.h>

#include <deque>

#include "tests/dist_autograd/kinds_support.h"

namespace weft::dist_autograd::test::pass_kinds_test {
namespace {

using weft::test::got;
using Leaves = std::vector<at::Tensor>;
using Leaf = rref::RRef<at::Tensor>;

at::Tensor square_add(const Leaves& leaves) { return leaves[0] * leaves[0] + leaves[1]; }

class PassKinds : public KindsTest {
 protected:
  // Returns the gradient that a pass holds on the owner of the leaf.
  at::Tensor gradient_there(std::size_t asker, const Leaf& leaf, const PassId& pass) {
    const rpc::Peer owner = cluster[asker].peer(leaf.owner().name);
    return got(owner.call<&Functions::gradient>(pass, leaf));
  }
};

TEST_P(PassKinds, OfCallsToAnotherAndToTheOwnAgent) {
  for (const std::size_t worker : {1, 0}) {
    Pass pass{cluster[0]};
    const at::Tensor x = leaf(), y = leaf();
    got(pass.backward(total(run<&Functions::square_add>(worker, pass, x, y))));
    expect_gradients(pass, {x, y}, gradients_here({x, y}, square_add));
  }
}

TEST_P(PassKinds, AreInThePassAndNotInGrad) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), y = leaf();
  const at::Tensor loss = total(run<&Functions::square_add>(1, pass, x, y));
  got(pass.backward(loss, {}, {.retain_graph = true}));
  EXPECT_FALSE(x.grad().defined());
  total(square_add({x, y})).backward();
  const at::Tensor before = dense(x.grad()).clone();
  got(pass.backward(loss));
  EXPECT_TRUE(dense(x.grad()).equal(before));
  expect_equal(dense(pass.gradient(x)), 2 * before, "of two backwards");
}

// The leaf is on worker1. The call that uses it runs on worker1 or on worker2.
TEST_P(PassKinds, OfALeafBehindAnRRef) {
  const at::Tensor value = draw();
  for (const std::size_t callee : {1, 2}) {
    const Leaf there = rref::remote<&Functions::make>(cluster.peer(0, 1), value);
    Pass pass{cluster[0]};
    const at::Tensor y = leaf();
    got(pass.backward(total(run<&Functions::square_add>(callee, pass, there, y))));
    const auto want = gradients_here({value.clone().requires_grad_(), y}, square_add);
    expect_gradient(gradient_there(0, there, pass.id()), want[0], "at its owner");
    expect_gradients(pass, {y}, {want[1]});
  }
}

TEST_P(PassKinds, OfSeveralDriversOnOneOwner) {
  struct Driver {
    std::unique_ptr<Pass> pass;
    Leaf there;
    at::Tensor y;
    rpc::Future<at::Tensor> result;
  };
  const at::Tensor value = draw();
  std::vector<Driver> drivers;
  std::vector<rpc::Future<void>> done;
  for (std::size_t i = 1; i < 4; ++i) {
    Driver driver{std::make_unique<Pass>(cluster[i]),
                  rref::remote<&Functions::make>(cluster.peer(i, 0), value),
                  leaf(),
                  {}};
    const rpc::Peer owner = cluster.peer(i, 0);
    driver.result = std::get<1>(GetParam()) == How::call
                        ? owner.call<&Functions::square_add>(*driver.pass, driver.there, driver.y)
                        : rref::remote<&Functions::square_add>(owner, *driver.pass, driver.there, driver.y)
                              .to_here(*driver.pass);
    drivers.push_back(std::move(driver));
  }
  for (Driver& driver : drivers) done.push_back(driver.pass->backward(total(got(std::move(driver.result)))));
  got(rpc::when_all(std::move(done)));
  for (std::size_t i = 0; i < drivers.size(); ++i) {
    const auto want = gradients_here({value.clone().requires_grad_(), drivers[i].y}, square_add);
    expect_gradient(gradient_there(i + 1, drivers[i].there, drivers[i].pass->id()), want[0], "its leaf");
    expect_gradients(*drivers[i].pass, {drivers[i].y}, {want[1]});
  }
}

TEST_P(PassKinds, OfSeveralRoundTrips) {
  Pass pass{cluster[0]};
  const Leaves leaves{leaf(), draw(), leaf(), draw(), leaf()};
  const at::Tensor sum = run<&Functions::add>(1, pass, leaves[0], leaves[1]);
  const at::Tensor product = run<&Functions::multiply>(2, pass, leaves[2], sum);
  const at::Tensor one = run<&Functions::stack>(3, pass, Leaves{leaves[3], product});
  const at::Tensor two = run<&Functions::stack>(1, pass, Leaves{leaves[4], product});
  const at::Tensor both = run<&Functions::multiply>(2, pass, one, two);
  const at::Tensor last = run<&Functions::multiply>(3, pass, both, both);
  got(pass.backward(total(last)));
  expect_gradients(pass, leaves, gradients_here(leaves, [](const Leaves& l) {
                     const at::Tensor product = l[2] * (l[0] + l[1]);
                     const at::Tensor both = at::stack({l[3], product}) * at::stack({l[4], product});
                     return both * both;
                   }));
}

TEST_P(PassKinds, OfTwoTypesInAMessage) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(at::kFloat), y = leaf(at::kDouble);
  const at::Tensor sum = run<&Functions::add>(1, pass, x, y);
  EXPECT_EQ(sum.scalar_type(), at::kDouble);
  got(pass.backward(total(sum)));
  expect_gradients(pass, {x, y}, gradients_here({x, y}, [](const Leaves& l) { return l[0] + l[1]; }));
}

TEST_P(PassKinds, OfAFunctionWithANestedCall) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), y = leaf();
  got(pass.backward(total(run<&Functions::nested>(1, pass, std::string("worker2"), x, y))));
  expect_gradients(pass, {x, y}, gradients_here({x, y}, [](const Leaves& l) {
                     const at::Tensor product = l[0] * l[1], sum = l[0] + l[1];
                     return (l[0] * l[1]) * product * sum * (product + sum);
                   }));
}

TEST_P(PassKinds, AccumulateOverTwoBackwardsOfANestedCall) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), y = leaf();
  const at::Tensor loss = total(run<&Functions::along>(1, pass, std::vector<std::string>{"worker2"}, x, y));
  got(pass.backward(loss, {}, {.retain_graph = true}));
  got(pass.backward(loss));
  expect_gradients(pass, {x, y}, gradients_here({x, y}, [](const Leaves& l) { return 2 * (l[0] + l[1]); }));
}

TEST_P(PassKinds, OnlyOfTensorsThatRequireGrad) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), y = draw();
  const at::Tensor product = run<&Functions::mixed>(1, pass, x, y);
  EXPECT_TRUE(dense(product).equal(dense(x * y))) << "the callee sees which of them does";
  got(pass.backward(total(product)));
  expect_gradients(pass, {x, y}, gradients_here({x, y}, [](const Leaves& l) { return l[0] * l[1]; }));
}

TEST_P(PassKinds, OfALeafThatIsAResult) {
  functions[1]->own = leaf();
  Pass pass{cluster[0]};
  const at::Tensor given = run<&Functions::give>(1, pass);
  got(pass.backward(total(given * given)));
  EXPECT_TRUE(pass.gradients().empty());
  EXPECT_EQ(state(1, pass).gradients().size(), 1U);
  expect_gradient(state(1, pass).gradient(functions[1]->own),
                  gradients_here({functions[1]->own}, [](const Leaves& l) { return l[0] * l[0]; })[0],
                  "at its owner");
}

INSTANTIATE_TEST_SUITE_P(Kinds, PassKinds, all_kinds(), kinds_name);

class PassRepeated : public ::testing::TestWithParam<Kind>, protected Workers {
 protected:
  PassRepeated() : Workers(GetParam()) {}
};

TEST_P(PassRepeated, AThousandBackwardsOverOneGraph) {
  Pass pass{cluster[0]};
  const at::Tensor x = leaf(), y = leaf();
  const at::Tensor loss = total(got(cluster.peer(0, 1).call<&Functions::add>(pass, x, y)));
  for (int i = 0; i < 1000; ++i) got(pass.backward(loss, {}, {.retain_graph = true}));
  const auto once = gradients_here({x, y}, [](const Leaves& l) { return l[0] + l[1]; });
  expect_equal(dense(pass.gradient(x)), 1000 * dense(once[0]), "x");
  expect_equal(dense(pass.gradient(y)), 1000 * dense(once[1]), "y");
}

INSTANTIATE_TEST_SUITE_P(Kinds, PassRepeated, ::testing::Values(Kind::dense, Kind::sparse),
                         [](const auto& info) { return kind_name(info.param); });

// --- Several trainers, each with its own pass, share one parameter of another worker ---

// Served by every agent: runs one training iteration for the caller. Its pass lives until the test ends.
struct Trainer {
  explicit Trainer(rpc::Agent& a) : agent(&a) {}
  // Also trains a parameter on this worker, and returns its gradient.
  rpc::Task<at::Tensor> train(rref::RRef<at::Tensor> parameter, at::Tensor data) {
    passes.emplace_back(*agent);
    Pass& pass = passes.back();
    const at::Tensor own = data.detach().clone().requires_grad_();
    const rpc::Peer owner = agent->peer(parameter.owner().name);
    const at::Tensor result = co_await owner.call<&Functions::square_add>(pass, parameter, own);
    at::Tensor loss;
    {
      const at::AutoGradMode with_grad(true);  // this call came without a pass: its handler runs without grad
      loss = total(result * own);
    }
    co_await pass.backward(loss);
    co_return pass.gradient(own);
  }
  using Service = rpc::Service<"test.trainer", rpc::Method<"train", &Trainer::train>>;
  rpc::Agent* agent;
  std::deque<Pass> passes;
};

class PassTrainers : public ::testing::TestWithParam<Kind>, protected Workers {
 protected:
  PassTrainers() : Workers(GetParam()) {
    for (std::size_t i = 1; i < cluster.size(); ++i) {
      trainers.push_back(std::make_shared<Trainer>(cluster[i]));
      cluster[i].serve(trainers.back());
    }
  }
  std::vector<std::shared_ptr<Trainer>> trainers;
};

TEST_P(PassTrainers, HaveGradientsOfTheirOwnParametersAndOfASharedOne) {
  const at::Tensor parameter = leaf();
  const auto handle = rref::local(cluster[0], parameter);
  std::vector<at::Tensor> data;
  std::vector<rpc::Future<at::Tensor>> trained;
  for (std::size_t i = 1; i < 4; ++i) {
    data.push_back(draw());
    trained.push_back(cluster.peer(0, i).call<&Trainer::train>(handle, data.back()));
  }
  const auto own = got(rpc::when_all(std::move(trained)));
  for (std::size_t i = 0; i < 3; ++i) {
    const at::Tensor here = data[i].detach().clone().requires_grad_();
    const auto want = gradients_here({parameter, here}, [](const auto& leaves) {
      return (leaves[0] * leaves[0] + leaves[1]) * leaves[1];
    });
    expect_gradient(own[i], want[1], "trainer " + std::to_string(i) + ", its own");
    const auto state = AutogradLayer::of(*cluster[0].core())->find(trainers[i]->passes.front().id());
    EXPECT_EQ(state->gradients().size(), 1U);
    expect_gradient(state->gradient(parameter), want[0], "trainer " + std::to_string(i) + ", the shared one");
  }
  EXPECT_FALSE(parameter.grad().defined());
  for (const auto& trainer : trainers) trainer->passes.clear();
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Kinds, PassTrainers, ::testing::Values(Kind::dense, Kind::sparse),
                         [](const auto& info) { return kind_name(info.param); });

}  // namespace
}  // namespace weft::dist_autograd::test::pass_kinds_test
