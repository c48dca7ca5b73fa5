#include "parameter_server/autograd_mode.h"

#include <weft/dist_autograd/pass.h>
#include <weft/dist_optim/checkpoint/checkpoint.h>
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/rref/rref.h>

#include "parameter_server/checkpoints.h"
#include "parameter_server/model.h"
#include "parameter_server/schedule.h"

using namespace weft;

namespace {

rpc::Task<void> train(rpc::Job& job, const Settings& settings, rref::RRef<Shared> shared,
                      std::shared_ptr<Head> head, Batches& batches, Report& report) {
  rpc::Agent& agent = job.agent();
  const auto own = rref::local(agent, head);
  dist_optim::DistributedOptimizer optimizer{agent, torch::optim::AdamOptions(settings.learning_rate),
                                             settings.optimizer_mode(), shared, own};
  const dist_optim::Modules modules{shared, own};

  const Checkpoints checkpoints(settings, job);
  std::int64_t step = 0;
  if (checkpoints.asked_for()) {
    if (const auto newest = checkpoints.newest()) {
      batches.skip(step = *newest);
      report.go_on(co_await dist_optim::load(checkpoints.file(step), modules, optimizer));
    }
    // No trainer begins before all trainers have loaded, and each round has all trainers. So a resumed run
    // has the same results as a run without the interruption.
    co_await optimizer.attached();
    co_await report.meet(job.world_size() - 1);
  }

  while (auto batch = batches.next()) {
    dist_autograd::Pass pass{agent};
    auto features = co_await shared.call<&Shared::forward>(pass, batch->images);
    auto loss = torch::cross_entropy_loss(head->forward(features), batch->labels);
    co_await pass.backward(loss);
    co_await optimizer.step(pass);

    if (co_await report.batch(batch->size(), loss.item().toDouble()))
      co_await optimizer.set_learning_rate(scheduled(settings.learning_rate, report.fraction()));

    if (checkpoints.due(++step)) {
      co_await dist_optim::save(checkpoints.file(step), modules, optimizer, report.notes());
      checkpoints.written(step);
    }
  }
  report.trained();
}

// Calls without a pass record no graph.
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

rpc::Task<void> run_autograd(rpc::Job& job, const Settings& settings, Batches& batches, const Dataset& test,
                             Report& report) {
  // All trainers get the same object: the first call with this name creates it.
  auto shared = rref::create<Shared>(job.agent().peer("server"), rref::Named{"shared"});
  auto head = std::make_shared<Head>();
  co_await train(job, settings, shared, head, batches, report);
  co_await report.finish(co_await evaluate(shared, head, test));
}
