#include <weft/parallel/pipeline/internal/value_exchange.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>

#include <string>
#include <utility>

namespace weft::pipeline {
namespace {

std::exception_ptr over_error() {
  return std::make_exception_ptr(
      rpc::Error(rpc::ErrorKind::aborted, "the step of the stage that receives the value has ended"));
}

}  // namespace

void ValueExchange::put(const Key& key, Values values, std::optional<rpc::Promise<void>> used) {
  {
    rpc::MutexLock lock(mutex_);
    if (error_ == nullptr) {
      values_.insert_or_assign(key, Entry{std::move(values), std::move(used)});
      came_.notify_all();
      return;
    }
  }
  if (used) used->complete(over_error());
}

Values ValueExchange::take(const Key& key, std::chrono::nanoseconds timeout) {
  Entry entry;
  rpc::MutexLock lock(mutex_);
  const bool is_there =
      came_.wait_until(lock, rpc::later(rpc::Clock::now(), timeout),
                       [&]() WEFT_REQUIRES(mutex_) { return error_ != nullptr || values_.contains(key); });
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (!is_there) {
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
    throw rpc::Error(rpc::ErrorKind::deadline_exceeded, (key.gradient ? "the gradient" : "the activation") +
                                                            (" from stage " + std::to_string(key.from())) +
                                                            " has not arrived within " +
                                                            std::to_string(limit.count()) + " ms");
  }
  entry = std::move(values_.extract(key).mapped());
  lock.unlock();
  if (entry.used) entry.used->complete(rpc::Result<void>{});
  return std::move(entry.values);
}

void ValueExchange::fail(std::exception_ptr error) {
  std::map<Key, Entry> dropped;
  {
    rpc::MutexLock lock(mutex_);
    if (error_ == nullptr) error_ = std::move(error);
    dropped.swap(values_);
    came_.notify_all();
  }
  for (auto& [key, entry] : dropped)
    if (entry.used) entry.used->complete(over_error());
}

std::exception_ptr ValueExchange::error() const {
  rpc::MutexLock lock(mutex_);
  return error_;
}

}  // namespace weft::pipeline
