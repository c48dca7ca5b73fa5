// Report: what a trainer tells the world: its bar here, its points to the server's scoreboard. One task uses
// it.
#pragma once

#include <weft/dist_optim/checkpoint/checkpoint.h>

#include "fashion_mnist/progress.h"
#include "parameter_server/scoreboard.h"

class Report {
 public:
  Report(weft::rpc::Agent& agent, std::int64_t total_images)
      : trainer_(agent.name()), server_(agent.peer("server")), progress_(trainer_, total_images) {}

  double fraction() const { return progress_.fraction(); }
  // For a checkpoint, and from one.
  weft::dist_optim::Notes notes() const;
  void go_on(const weft::dist_optim::Notes& notes);
  weft::rpc::Task<void> meet(std::size_t trainers);  // waits for all of them
  // After every batch; true after every twentieth, when the server hears of it.
  weft::rpc::Task<bool> batch(std::int64_t images, double loss);
  void trained();  // the last batch is over; what follows is not part of the training time
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
