// when_all, when_all_or_error: combine many futures into one, with their values in the given order.
//
// when_all completes when all futures have completed. If some failed, it fails with the first error in the
// given order. when_all_or_error fails as soon as one future fails, with that error. The other operations
// then continue, and their results are dropped; to end them, make their calls in a CancelScope and cancel it.
// Thread-safety: as Future.
#pragma once

#include <weft/rpc/core/future.h>

#include <vector>

namespace weft::rpc {

namespace detail {

template <class T>
struct Gathering {
  using Value = std::conditional_t<std::is_void_v<T>, void, std::vector<typename Result<T>::Value>>;
  explicit Gathering(const std::vector<Future<T>>& futures)
      : promise(futures.empty() ? Promise<Value>()
                                : Promise<Value>(futures.front().loop(), futures.front().exceptions())) {}

  std::vector<std::optional<Result<T>>> results;
  std::atomic<std::size_t> open;
  std::atomic<bool> over = false;  // completed, or about to be
  Promise<Value> promise;

  void finish() {
    if (over.exchange(true)) return;
    for (auto& result : results)
      if (!result->ok()) return promise.fail(result->error());
    if constexpr (std::is_void_v<T>) {
      promise.complete(Result<void>{});
    } else {
      std::vector<T> values;
      values.reserve(results.size());
      for (auto& result : results) values.push_back(std::move(*result).get());
      promise.complete(std::move(values));
    }
  }
};

template <class T>
auto gather(std::vector<Future<T>> futures, bool until_error) {
  auto gathering = std::make_shared<Gathering<T>>(futures);
  gathering->results.resize(futures.size());
  gathering->open = futures.size() + 1;
  auto all = gathering->promise.future();
  for (std::size_t i = 0; i < futures.size(); ++i)
    std::move(futures[i]).then([gathering, i, until_error](Result<T>&& result) {
      if (until_error && !result.ok() && !gathering->over.exchange(true))
        gathering->promise.fail(result.error());
      gathering->results[i].emplace(std::move(result));
      if (--gathering->open == 0) gathering->finish();
    });
  if (--gathering->open == 0) gathering->finish();
  return all;
}

}  // namespace detail

// Returns a future of all values.
template <class T>
auto when_all(std::vector<Future<T>> futures) {
  return detail::gather(std::move(futures), false);
}

// Returns a future of all values, which fails as soon as one of the futures fails.
template <class T>
auto when_all_or_error(std::vector<Future<T>> futures) {
  return detail::gather(std::move(futures), true);
}

}  // namespace weft::rpc
