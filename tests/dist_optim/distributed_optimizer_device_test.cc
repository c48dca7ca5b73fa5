// DistributedOptimizer over parameters on an accelerator whose streams execute only when a thread waits for
// them.
#include <c10/core/StreamGuard.h>

#include "tests/dist_optim/step_support.h"
#include "tests/support/cluster.h"
#include "tests/support/fake_accelerator.h"

namespace weft::dist_optim::distributed_optimizer_device_test {
namespace {

using namespace step_support;
using test::FakeAccelerator;

FakeAccelerator& accelerator() { return FakeAccelerator::install(); }
c10::Stream stream(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, FakeAccelerator::device(0), id);
}

// A parameter on the accelerator. Arguments and results of calls are on the CPU.
struct Weight : torch::nn::Module {
  Weight() {
    at::NoGradGuard no_grad;
    weight = register_parameter("weight", at::zeros({2}).to(FakeAccelerator::device(0)));
  }
  at::Tensor weight;
  at::Tensor forward() { return weight.cpu(); }
  at::Tensor value() { return weight.detach().cpu(); }
  using Service = rpc::Service<"test.device_weight", rpc::Method<"forward", &Weight::forward>,
                               rpc::Method<"value", &Weight::value>>;
};

// The current stream of the handler's thread, for all handlers after this one.
void use_stream(std::int64_t id) {
  c10::impl::VirtualGuardImpl(FakeAccelerator::type).exchangeStream(stream(id));
}
using UseStream = rpc::Function<"test.use_stream", &use_stream>;

// Makes a gradient whose elements are `value`, asynchronously. Nothing else refers to the gradient, and the
// pass keeps it.
struct LateGradient : torch::autograd::Function<LateGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::Tensor x, double value) {
    context->saved_data["value"] = value;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    at::Tensor late = at::empty(gradients[0].sizes(), gradients[0].options());
    const double value = context->saved_data["value"].toDouble();
    accelerator().launch(late.device(), [memory = at::from_blob(late.data_ptr(), late.sizes(), at::kFloat),
                                         value] { memory.fill_(value); });
    return {late, {}};
  }
};

// The owner is also a trainer. Its step is prepared on one stream and waits for the pass of another trainer.
// It continues in the step of that trainer, on another stream. Only the events of the step order the two
// streams.
TEST(DistributedOptimizerOnAnAccelerator, AStepThatWaitsForAnotherTrainerReadsCompleteGradients) {
  accelerator();
  test::Cluster cluster{{layers(), false, [](rpc::AgentOptions& options) { options.handler_threads = 1; }},
                        {"owner", "trainer"}};
  rpc::Agent& owner = cluster["owner"];
  owner.serve<UseStream>();
  owner.allow_create<Weight>();
  const auto on_stream = [&](std::int64_t id) { got(cluster.peer("trainer", "owner").call<UseStream>(id)); };
  const auto theirs = rref::create<Weight>(cluster.peer("trainer", "owner"), rref::Named{"weight"});
  const auto ours = rref::create<Weight>(cluster.peer("owner", "owner"), rref::Named{"weight"});
  const auto here = got(ours.local());
  DistributedOptimizer our_optimizer{owner, torch::optim::SGDOptions(1), bounded_staleness(0), ours};
  DistributedOptimizer their_optimizer{cluster["trainer"], torch::optim::SGDOptions(1), bounded_staleness(0),
                                       theirs};
  got(our_optimizer.attached());
  got(their_optimizer.attached());

  dist_autograd::Pass their_pass{cluster["trainer"]};
  got(their_pass.backward(got(theirs.call<&Weight::forward>(their_pass)).sum()));
  dist_autograd::Pass our_pass{owner};
  {
    const c10::StreamGuard maker(stream(21));
    const at::Tensor loss = LateGradient::apply(here->weight, 3.).sum();
    got(our_pass.backward(loss));
  }
  EXPECT_GT(accelerator().pending(stream(21)), 0U) << "nothing has waited for the gradient";

  on_stream(22);
  auto our_step = our_optimizer.step(our_pass);
  test::eventually("the step waits", [&] { return got(our_optimizer.stats()).at(0).waiting_passes == 1; });
  on_stream(23);
  EXPECT_TRUE(got(their_optimizer.step(their_pass)).applied);
  EXPECT_TRUE(got(std::move(our_step)).applied);
  on_stream(24);
  const at::Tensor value = got(theirs.call<&Weight::value>());
  EXPECT_TRUE(value.equal(at::full({2}, -4.))) << value;
}

}  // namespace
}  // namespace weft::dist_optim::distributed_optimizer_device_test
