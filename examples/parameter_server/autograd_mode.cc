#include "parameter_server/autograd_mode.h"

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/dist_optimizer.h>
#include <weft/rref/rref.h>

#include "parameter_server/model.h"
#include "parameter_server/schedule.h"

using namespace weft;

namespace {

rpc::Task<void> train(rpc::Agent& agent, const Settings& settings, rref::RRef<Shared> shared,
                      std::shared_ptr<Head> head, Batches& batches, Report& report) {
  dist_optim::DistOptimizer optimizer{agent, torch::optim::AdamOptions(settings.learning_rate),
                                      settings.optimizer_mode(), shared, rref::local(agent, head)};

  while (auto batch = batches.next()) {
    dist_autograd::Pass pass{agent};
    auto features = co_await shared.call<&Shared::forward>(pass, batch->images);
    auto loss = torch::cross_entropy_loss(head->forward(features), batch->labels);
    co_await pass.backward(loss);
    co_await optimizer.step(pass);

    if (co_await report.batch(batch->size(), loss.item().toDouble()))
      co_await optimizer.set_learning_rate(scheduled(settings.learning_rate, report.fraction()));
  }
  report.trained();
}

// Without a pass, features come without a graph.
rpc::Task<double> evaluate(rref::RRef<Shared> shared, std::shared_ptr<Head> head, const Dataset& test) {
  std::int64_t right = 0;
  for (std::int64_t begin = 0; begin < test.size(); begin += 500) {
    const Batch batch = test.batch(begin, begin + 500);
    auto features = co_await shared.call<&Shared::forward>(batch.images);
    right += count_right(head->forward(features), batch.labels);
  }
  co_return static_cast<double>(right) / static_cast<double>(test.size());
}

}  // namespace

rpc::Task<void> run_autograd(rpc::Agent& agent, const Settings& settings, Batches& batches,
                             const Dataset& test, Report& report) {
  auto shared =
      rref::create<Shared>(agent.peer("server"), rref::Named{"shared"});  // one object, found by name
  auto head = std::make_shared<Head>();
  co_await train(agent, settings, shared, head, batches, report);
  co_await report.finish(co_await evaluate(shared, head, test));
}
