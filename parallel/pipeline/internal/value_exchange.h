// ValueExchange: the values of a step that one stage has sent and another stage has not taken yet.
//
// Thread-safe.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/core/mutex.h>

#include <chrono>
#include <exception>
#include <map>
#include <optional>

namespace weft::pipeline {

class ValueExchange {
 public:
  struct Key {
    schedule::Edge edge;
    int microbatch = 0;
    bool gradient = false;

    int from() const { return gradient ? edge.to : edge.from; }  // stages
    int to() const { return gradient ? edge.from : edge.to; }
    auto operator<=>(const Key&) const = default;
  };

  // Stores the values until take(). used: completes when the values are taken; fails with `aborted` if the
  // step ends first.
  void put(const Key& key, Values values, std::optional<rpc::Promise<void>> used = {});
  // Waits for the values, and removes them. Throws the error of fail(), and deadline_exceeded after
  // `timeout`.
  Values take(const Key& key, std::chrono::nanoseconds timeout);
  // All waits, now and later, fail with the first error.
  void fail(std::exception_ptr error);
  std::exception_ptr error() const;

 private:
  mutable rpc::Mutex mutex_;
  rpc::Condition came_;
  struct Entry {
    Values values;
    std::optional<rpc::Promise<void>> used;
  };
  std::map<Key, Entry> values_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::pipeline
