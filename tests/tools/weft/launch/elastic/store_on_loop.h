// A store in memory that can fail on request, and the loop of its users, whose time the test sets.
#pragma once

#include <weft/rpc/job/store/memory_store.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/hand_loop.h"

namespace weft::tool::launch::elastic::testing {

enum class Trouble : std::uint8_t {
  none,
  unreachable,  // each operation fails with `unavailable`
  silent,       // no operation gets a reply
  late          // reads get their reply from answer_late()
};

class TroubledStore final : public rpc::Store {
 public:
  explicit TroubledStore(const std::shared_ptr<rpc::Loop>& loop) : loop_(loop), memory_(loop) {}
  Trouble trouble = Trouble::none;
  std::function<void(const std::string& key)> removing = [](const std::string&) {};

  rpc::Future<void> set(std::string key, std::string value, rpc::LeaseId lease) override {
    return answer<void>([&] { return memory_.set(key, value, lease); });
  }
  rpc::Future<std::string> get(std::string key, rpc::CallOptions options) override {
    return answer<std::string>([&] { return memory_.get(key, options); });
  }
  rpc::Future<std::optional<std::string>> try_get(std::string key) override {
    if (trouble == Trouble::late) {
      const auto promise = std::make_shared<rpc::Promise<std::optional<std::string>>>();
      late_.push_back([this, key, promise] { promise->complete(memory_.try_get(key).get()); });
      return promise->future();
    }
    return answer<std::optional<std::string>>([&] { return memory_.try_get(key); });
  }
  rpc::Future<std::int64_t> add(std::string key, std::int64_t delta) override {
    return answer<std::int64_t>([&] { return memory_.add(key, delta); });
  }
  rpc::Future<rpc::StoreExchange> compare_set(std::string key, std::optional<std::string> expected,
                                              std::string desired, rpc::LeaseId lease) override {
    return answer<rpc::StoreExchange>([&] { return memory_.compare_set(key, expected, desired, lease); });
  }
  rpc::Future<void> wait(std::vector<std::string> keys, rpc::CallOptions options) override {
    return answer<void>([&] { return memory_.wait(keys, options); });
  }
  rpc::Future<bool> remove(std::string key) override {
    removing(key);
    return answer<bool>([&] { return memory_.remove(key); });
  }
  rpc::Future<rpc::StoreView> list(std::string prefix) override {
    return answer<rpc::StoreView>([&] { return memory_.list(prefix); });
  }
  rpc::Future<rpc::StoreChanges> watch(std::string prefix, std::uint64_t after,
                                       rpc::CallOptions options) override {
    // The deadline is a time of the system's clock.
    options.timeout = options.timeout.value() + (loop_->now() - rpc::Clock::now());
    return answer<rpc::StoreChanges>([&] { return memory_.watch(prefix, after, options); });
  }
  rpc::Future<rpc::StoreLease> grant(std::chrono::nanoseconds ttl) override {
    return answer<rpc::StoreLease>([&] { return memory_.grant(ttl); });
  }
  rpc::Future<void> renew(rpc::LeaseId lease) override {
    return answer<void>([&] { return memory_.renew(lease); });
  }
  rpc::Future<void> revoke(rpc::LeaseId lease) override {
    return answer<void>([&] { return memory_.revoke(lease); });
  }
  void abandon() { unanswered_.clear(); }  // the operations without a reply fail
  void answer_late() {
    for (const auto& read : std::exchange(late_, {})) read();
  }
  std::size_t waiting() const { return memory_.waiting(); }

 private:
  template <class T, class F>
  rpc::Future<T> answer(F operation) {
    if (trouble == Trouble::none) return operation();
    if (trouble == Trouble::unreachable)
      return rpc::Future<T>::made(
          std::make_exception_ptr(rpc::Error(rpc::ErrorKind::unavailable, "unreachable")));
    const auto promise = std::make_shared<rpc::Promise<T>>();
    unanswered_.push_back(promise);
    return promise->future();
  }

  const std::shared_ptr<rpc::Loop> loop_;
  rpc::MemoryStore memory_;
  std::vector<std::shared_ptr<void>> unanswered_;
  std::vector<std::function<void()>> late_;
};

struct StoreOnLoop {
  ~StoreOnLoop() {
    store->abandon();
    loop->drop();
  }
  bool until(const std::function<bool()>& holds) {
    return test::run_until({loop.get()}, holds, std::chrono::minutes{10});
  }
  // Runs everything that is due within this time.
  void pass(std::chrono::nanoseconds time) {
    const auto end = loop->now() + time;
    until([&] { return loop->now() >= end; });
    loop->turn();
  }
  std::optional<std::string> value(const std::string& key) { return store->try_get(key).get(); }

  const std::shared_ptr<test::HandLoop> loop = std::make_shared<test::HandLoop>();
  const std::shared_ptr<TroubledStore> store = std::make_shared<TroubledStore>(loop);
};

}  // namespace weft::tool::launch::elastic::testing
