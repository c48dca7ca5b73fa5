// Report: prints the progress of a trainer, and sends its points to the scoreboard of the server. One task
// uses the object.
#pragma once

#include <weft/dist_optim/checkpoint/checkpoint.h>

#include "fashion_mnist/progress.h"
#include "parameter_server/scoreboard.h"

class Report {
 public:
  Report(weft::rpc::Agent& agent, std::int64_t total_images)
      : trainer_(agent.name()), server_(agent.peer("server")), progress_(trainer_, total_images) {}

  double fraction() const { return progress_.fraction(); }
  // The progress of the trainer, which is saved in a checkpoint.
  weft::dist_optim::Notes notes() const;
  void go_on(const weft::dist_optim::Notes& notes);
  weft::rpc::Task<void> meet(std::size_t trainers);  // waits for all trainers
  // Call it after each batch. Returns true after each twentieth batch, whose loss is sent to the server.
  weft::rpc::Task<bool> batch(std::int64_t images, double loss);
  void trained();  // after the last batch: ends the training time
  weft::rpc::Task<void> finish(double test_accuracy);

 private:
  Point point() const {
    return {trainer_, progress_.state().images, progress_.images_before(), progress_.seconds(),
            progress_.state().loss};
  }

  const std::string trainer_;
  const weft::rpc::Peer server_;
  Progress progress_;
  Point last_;
};
