#include "parameter_server/trainer.h"

#include "parameter_server/autograd_mode.h"
#include "parameter_server/pull_push_mode.h"

using namespace weft;

void train(rpc::Job& job, const Settings& settings) {
  Dataset training(settings.data, "train");
  training.truncate(settings.images);
  const auto trainers = static_cast<std::int64_t>(job.world_size()) - 1,
             rank = static_cast<std::int64_t>(job.rank());
  Batches batches(training.shard(rank - 1, trainers), settings.batch_size, settings.epochs);
  Dataset test(settings.data, "t10k");
  test.truncate(settings.test_images);

  job.join().get();
  rpc::Agent& agent = job.agent();
  Report report(agent, batches.total_images());
  agent.run(settings.mode == Mode::autograd ? run_autograd(job, settings, batches, test, report)
                                            : run_pull_push(agent, settings, batches, test, report));
}
