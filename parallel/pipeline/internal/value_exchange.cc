#include <weft/parallel/pipeline/internal/value_exchange.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>

#include <string>
#include <utility>

namespace weft::pipeline {

void ValueExchange::put(const Key& key, Values values) {
  std::lock_guard lock(mutex_);
  values_.emplace(key, std::move(values));
  came_.notify_all();
}

Values ValueExchange::take(const Key& key, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  const bool is_there = came_.wait_until(lock, rpc::later(rpc::Clock::now(), timeout),
                                         [&] { return error_ != nullptr || values_.contains(key); });
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (!is_there) {
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
    throw rpc::Error(rpc::ErrorKind::deadline_exceeded,
                     (key.gradient ? "the gradient from stage " + std::to_string(key.edge.to)
                                   : "the activation from stage " + std::to_string(key.edge.from)) +
                         " has not come within " + std::to_string(limit.count()) + " ms");
  }
  return std::move(values_.extract(key).mapped());
}

void ValueExchange::fail(std::exception_ptr error) {
  std::lock_guard lock(mutex_);
  if (error_ == nullptr) error_ = std::move(error);
  came_.notify_all();
}

std::exception_ptr ValueExchange::error() const {
  std::lock_guard lock(mutex_);
  return error_;
}

}  // namespace weft::pipeline
