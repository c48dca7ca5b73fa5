// when_all: one future for many. It completes when all have; if some failed, with the first error in the
// given order.
#pragma once

#include <weft/rpc/core/future.h>

#include <vector>

namespace weft::rpc {

namespace detail {

template <class T>
struct Gathering {
  using Value = std::conditional_t<std::is_void_v<T>, void, std::vector<typename Result<T>::Value>>;
  explicit Gathering(std::shared_ptr<const Loop> loop) : promise(std::move(loop)) {}

  std::vector<std::optional<Result<T>>> results;
  std::atomic<std::size_t> open;
  Promise<Value> promise;

  void finish() {
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

}  // namespace detail

template <class T>
auto when_all(std::vector<Future<T>> futures) {
  auto gathering = std::make_shared<detail::Gathering<T>>(futures.empty() ? nullptr : futures.front().loop());
  gathering->results.resize(futures.size());
  gathering->open = futures.size() + 1;
  auto all = gathering->promise.future();
  for (std::size_t i = 0; i < futures.size(); ++i)
    std::move(futures[i]).then([gathering, i](Result<T>&& result) {
      gathering->results[i].emplace(std::move(result));
      if (--gathering->open == 0) gathering->finish();
    });
  if (--gathering->open == 0) gathering->finish();
  return all;
}

}  // namespace weft::rpc
