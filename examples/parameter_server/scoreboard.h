// Scoreboard: where trainers report; a plain object that the server serves to them. Thread-safe.
#pragma once

#include <weft/rpc/rpc.h>

#include <cstdint>
#include <mutex>
#include <vector>

// Where one trainer is.
struct Point {
  std::string trainer;
  std::int64_t images = 0;  // seen so far
  double seconds = 0;       // since its first batch
  double loss = 0;
};
WEFT_CODEC(Point, trainer, images, seconds, loss)

class Scoreboard {
 public:
  void record(Point point);
  void finish(Point last, double test_accuracy);
  using Service = weft::rpc::Service<"scoreboard", weft::rpc::Method<"record", &Scoreboard::record>,
                                     weft::rpc::Method<"finish", &Scoreboard::finish>>;

  std::vector<Point> points() const;
  double test_accuracy() const;      // mean over the trainers
  double images_per_second() const;  // of all trainers together

 private:
  mutable std::mutex mutex_;  // guards the rest
  std::vector<Point> points_;
  std::vector<double> accuracies_;
  std::int64_t images_ = 0;
  double seconds_ = 0;  // of the slowest
};
