// Trains a small network on Fashion-MNIST with workers that join and leave:  elastic_train
//
// Without a launcher the program starts `weft launch` of itself and a storm of kills, stops and joins
// (storm.cc). Under `weft launch` the program is one of the workers. The training loop is in training.cc.
#include <torch/torch.h>
#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/elastic/leave_on_signal.h>
#include <weft/parallel/elastic/run.h>
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/job/job_place.h>
#include <weft/rpc/job/run_job.h>

#include <csignal>

#include "elastic_train/settings.h"
#include "elastic_train/storm.h"
#include "elastic_train/training.h"

namespace collectives = weft::collectives;
namespace elastic = weft::elastic;
namespace rpc = weft::rpc;

namespace {

elastic::Outcome train(rpc::Job& job, const std::shared_ptr<rpc::Gauges>& gauges, const Settings& settings) {
  Training training(settings, job.name(), gauges);
  const elastic::LeaveOnSignal leave(training.state());
  const auto outcome =
      elastic::run(job, training.state(), [&](const collectives::Group& group) { training.train(group); },
                   {.on_change = [&](const elastic::Change& change) { training.begin(change); }});
  if (outcome == elastic::Outcome::left) {
    training.left();
    job.leave().get();
  }
  return outcome;
}

}  // namespace

int main(int argc, char** argv) {
  const Settings settings = parse_settings(argc, argv);
  if (!rpc::started_by()) return run_storm(argc, argv, settings);
  at::set_num_threads(settings.threads);
  if (settings.float64) c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
  auto outcome = elastic::Outcome::finished;
  const auto gauges = std::make_shared<rpc::Gauges>();  // for `weft dash`
  const int status = rpc::run_job(argc, argv, {collectives::layer(), gauges->layer()},
                                  [&](rpc::Job& job) { outcome = train(job, gauges, settings); });
  // A worker that exits with status 0 would end the job, so a worker that has only left exits with another
  // status.
  return status == 0 && outcome == elastic::Outcome::left ? 128 + SIGTERM : status;
}
