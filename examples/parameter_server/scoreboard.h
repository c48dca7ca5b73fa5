// Scoreboard: the results of the trainers. The server serves this plain object to the trainers. Thread-safe.
#pragma once

#include <weft/rpc/rpc.h>

#include <cstdint>
#include <mutex>
#include <vector>

#include "fashion_mnist/loss_curve.h"

class Scoreboard {
 public:
  void record(Point point);
  void finish(Point last, double test_accuracy);
  // Completes when this number of trainers have called it.
  weft::rpc::Future<void> meet(std::uint64_t trainers);
  using Service = weft::rpc::Service<"scoreboard", weft::rpc::Method<"record", &Scoreboard::record>,
                                     weft::rpc::Method<"finish", &Scoreboard::finish>,
                                     weft::rpc::Method<"meet", &Scoreboard::meet>>;

  std::vector<Point> points() const;
  double test_accuracy() const;      // mean over the trainers
  double images_per_second() const;  // the rate of all trainers together

 private:
  mutable std::mutex mutex_;  // guards the rest
  std::vector<Point> points_;
  std::vector<double> accuracies_;
  std::int64_t images_ = 0;
  double seconds_ = 0;  // the training time of the slowest trainer
  std::vector<weft::rpc::Promise<void>> meeting_;
};
