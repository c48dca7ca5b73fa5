#include <weft/rpc/job/store/store_wait.h>

#include <weft/rpc/job/store/store_table.h>

#include <algorithm>

namespace weft::rpc::detail {
namespace {

template <class T>
class Wait : public StoreWait {
 public:
  Wait(Promise<T> promise, const CallOptions& options, KeyOrPrefix at)
      : StoreWait(deadline_of(options), std::move(at)), promise_(std::move(promise)) {}

 protected:
  Callback deliver(typename Result<T>::Value value, const std::shared_ptr<StoreWait>& self) {
    if (!claim()) return nullptr;
    return [this, self, value = std::move(value)]() mutable { promise_.complete(std::move(value)); };
  }

 private:
  // The operation and its key, for errors.
  virtual std::string title() const = 0;
  void give(const Error& error) override {
    switch (error.kind()) {
      case ErrorKind::cancelled:
      case ErrorKind::deadline_exceeded:
      case ErrorKind::shut_down:
        return promise_.fail(Error(error.kind(), title() + ": " + error.what(), error.execution()));
      default:  // an error of the backend, which names its servers or its file
        return promise_.fail(error);
    }
  }
  Promise<T> promise_;
};

class ValueWait final : public Wait<std::string> {
 public:
  ValueWait(Promise<std::string> promise, const CallOptions& options, const std::string& key)
      : Wait(std::move(promise), options, {key}), key_(key) {}

 private:
  Callback answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) override {
    const std::string* value = table.find(key_);
    return value == nullptr ? Callback{} : deliver(*value, self);
  }
  std::string title() const override { return "store: get '" + key_ + "'"; }
  const std::string key_;
};

class KeysWait final : public Wait<void> {
 public:
  KeysWait(Promise<void> promise, const CallOptions& options, std::vector<std::string> keys)
      : Wait(std::move(promise), options, {}), keys_(std::move(keys)) {}

 private:
  // If one key is missing, changes of the other keys do not matter.
  Callback answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) override {
    const auto missing =
        std::find_if(keys_.begin(), keys_.end(), [&](const auto& key) { return table.find(key) == nullptr; });
    if (missing == keys_.end()) return deliver({}, self);
    move_to(*missing);
    return {};
  }
  std::string title() const override { return "store: wait for " + keys_text(keys_); }
  const std::vector<std::string> keys_;
};

class ChangeWait final : public Wait<StoreChanges> {
 public:
  ChangeWait(Promise<StoreChanges> promise, const CallOptions& options, const std::string& prefix,
             std::uint64_t after)
      : Wait(std::move(promise), options, {prefix, true}), prefix_(prefix), after_(after) {}

 private:
  Callback answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) override {
    return table.changed(prefix_, after_) ? deliver(table.changes(prefix_, after_), self) : Callback{};
  }
  std::string title() const override { return "store: watch '" + prefix_ + "'"; }
  const std::string prefix_;
  const std::uint64_t after_;
};

// The wait owns the promise, and the promise refers to the wait for cancellation: that reference must be
// weak.
template <class W, class T, class... Arguments>
StoreWaiting<T> make(const CallOptions& options, DropWait drop, std::shared_ptr<const Loop> loop,
                     Arguments&&... what) {
  Promise<T> promise(std::move(loop));
  auto self = std::make_shared<std::weak_ptr<StoreWait>>();
  promise.on_cancel([self, drop = std::move(drop)] {
    const auto wait = self->lock();
    if (wait == nullptr) return;
    wait->fail(Error(ErrorKind::cancelled, "the wait was cancelled"));
    drop(wait);
  });
  Future<T> future = promise.future();
  auto wait = std::make_shared<W>(std::move(promise), options, std::forward<Arguments>(what)...);
  *self = wait;
  return {std::move(wait), std::move(future)};
}

}  // namespace

std::optional<Clock::time_point> deadline_of(const CallOptions& options) {
  if (!options.timeout) return std::nullopt;
  return later(Clock::now(), *options.timeout);
}

std::string keys_text(const std::vector<std::string>& keys) {
  if (keys.empty()) return "no keys";
  const std::string first = "'" + keys.front() + "'";
  return keys.size() == 1 ? first : first + " (the first of " + std::to_string(keys.size()) + " keys)";
}

StoreWaiting<std::string> wait_for_value(std::string key, const CallOptions& options, DropWait drop,
                                         std::shared_ptr<const Loop> loop) {
  return make<ValueWait, std::string>(options, std::move(drop), std::move(loop), std::move(key));
}

StoreWaiting<void> wait_for_keys(std::vector<std::string> keys, const CallOptions& options, DropWait drop,
                                 std::shared_ptr<const Loop> loop) {
  return make<KeysWait, void>(options, std::move(drop), std::move(loop), std::move(keys));
}

StoreWaiting<StoreChanges> wait_for_change(std::string prefix, std::uint64_t after,
                                           const CallOptions& options, DropWait drop,
                                           std::shared_ptr<const Loop> loop) {
  return make<ChangeWait, StoreChanges>(options, std::move(drop), std::move(loop), std::move(prefix), after);
}

}  // namespace weft::rpc::detail
