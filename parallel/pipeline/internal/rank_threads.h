// RankThreads: a thread for each rank, on which a step may block.
//
// Not thread-safe.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft::pipeline {

class RankThreads {
 public:
  explicit RankThreads(int ranks);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Runs f(rank) on each thread, and returns when all have ended. f does not throw.
  void run(const std::function<void(int)>& f);

 private:
  void serve(int rank);

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  const std::function<void(int)>* f_ = nullptr;
  std::size_t runs_ = 0;
  int running_ = 0;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft::pipeline
