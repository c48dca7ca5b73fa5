#include <weft/rpc/store/store_table.h>

#include <algorithm>
#include <charconv>

namespace weft::rpc {

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second.value;
}

std::optional<std::string> StoreTable::copy(const std::string& key) const {
  const std::string* value = find(key);
  return value == nullptr ? std::nullopt : std::optional(*value);
}

StoreView StoreTable::view(const std::string& prefix) const {
  StoreView view{version_, {}};
  for (auto i = entries_.lower_bound(prefix); i != entries_.end() && i->first.starts_with(prefix); ++i)
    view.entries.emplace_hint(view.entries.end(), i->first, i->second.value);
  return view;
}

bool StoreTable::changed(const std::string& prefix, std::uint64_t after) const {
  if (after >= version_) return false;
  if (after < forgotten_) return true;
  for (auto i = entries_.lower_bound(prefix); i != entries_.end() && i->first.starts_with(prefix); ++i)
    if (i->second.version > after) return true;
  return std::any_of(removals_.begin(), removals_.end(), [&](const auto& removal) {
    return removal.first > after && removal.second.starts_with(prefix);
  });
}

std::int64_t StoreTable::sum(const std::string& key, std::int64_t delta) const {
  std::int64_t number = 0;
  if (const std::string* text = find(key)) {
    const char* const last = text->data() + text->size();
    const auto [end, error] = std::from_chars(text->data(), last, number);
    if (error != std::errc{} || end != last)
      throw Error(ErrorKind::invalid_argument, "add: '" + key + "' holds no number");
  }
  if (__builtin_add_overflow(number, delta, &number))
    throw Error(ErrorKind::invalid_argument, "add: '" + key + "' would overflow");
  return number;
}

void StoreTable::set(const std::string& key, std::string value, Jobs& jobs) {
  entries_.insert_or_assign(key, Entry{std::move(value), ++version_});
  changed_now(key, jobs);
}

bool StoreTable::remove(const std::string& key, Jobs& jobs) {
  if (entries_.erase(key) == 0) return false;
  removals_.emplace_back(++version_, key);
  if (removals_.size() > most_removals) {
    forgotten_ = removals_.front().first;
    removals_.pop_front();
  }
  changed_now(key, jobs);
  return true;
}

void StoreTable::changed_now(const std::string& key, Jobs& jobs) {
  for (auto i = waits_.begin(); i != waits_.end();) {
    if ((*i)->concerns(key)) {
      if (Job job = (*i)->answer(*this, *i)) jobs.push_back(std::move(job));
    }
    i = (*i)->over() ? waits_.erase(i) : std::next(i);
  }
}

void StoreTable::wait(std::shared_ptr<StoreWait> wait, Jobs& jobs) {
  if (Job job = wait->answer(*this, wait)) jobs.push_back(std::move(job));
  // Cancelled before it came here: whoever cancels marks it first and drops it then, so it cannot stay
  // behind.
  if (!wait->over()) waits_.push_back(std::move(wait));
}

void StoreTable::drop(const std::shared_ptr<StoreWait>& wait) { waits_.remove(wait); }

std::vector<std::shared_ptr<StoreWait>> StoreTable::take_late(Clock::time_point now) {
  std::vector<std::shared_ptr<StoreWait>> late;
  for (auto i = waits_.begin(); i != waits_.end();) {
    if ((*i)->deadline() && *(*i)->deadline() <= now) {
      late.push_back(std::move(*i));
      i = waits_.erase(i);
    } else {
      ++i;
    }
  }
  return late;
}

std::vector<std::shared_ptr<StoreWait>> StoreTable::take_all() {
  std::vector<std::shared_ptr<StoreWait>> all(waits_.begin(), waits_.end());
  waits_.clear();
  return all;
}

namespace detail {
namespace {

template <class T>
class Wait : public StoreWait {
 public:
  Wait(Promise<T> promise, const CallOptions& options)
      : StoreWait(deadline_of(options)), promise_(std::move(promise)) {}

 protected:
  Job deliver(typename Result<T>::Value value, const std::shared_ptr<StoreWait>& self) {
    if (!claim()) return nullptr;
    return [this, self, value = std::move(value)]() mutable { promise_.complete(std::move(value)); };
  }

 private:
  void give(const Error& error) override { promise_.fail(error); }
  Promise<T> promise_;
};

class ValueWait final : public Wait<std::string> {
 public:
  ValueWait(Promise<std::string> promise, const CallOptions& options, std::string key)
      : Wait(std::move(promise), options), key_(std::move(key)) {}

 private:
  bool concerns(const std::string& key) const override { return key == key_; }
  Job answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) override {
    const std::string* value = table.find(key_);
    return value == nullptr ? Job{} : deliver(*value, self);
  }
  std::string key_;
};

class KeysWait final : public Wait<void> {
 public:
  KeysWait(Promise<void> promise, const CallOptions& options, std::vector<std::string> keys)
      : Wait(std::move(promise), options), keys_(std::move(keys)) {}

 private:
  bool concerns(const std::string& key) const override {
    return std::find(keys_.begin(), keys_.end(), key) != keys_.end();
  }
  Job answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) override {
    const bool all =
        std::all_of(keys_.begin(), keys_.end(), [&](const auto& key) { return table.find(key) != nullptr; });
    return all ? deliver({}, self) : Job{};
  }
  std::vector<std::string> keys_;
};

class ChangeWait final : public Wait<StoreView> {
 public:
  ChangeWait(Promise<StoreView> promise, const CallOptions& options, std::string prefix, std::uint64_t after)
      : Wait(std::move(promise), options), prefix_(std::move(prefix)), after_(after) {}

 private:
  bool concerns(const std::string& key) const override { return key.starts_with(prefix_); }
  Job answer(const StoreTable& table, const std::shared_ptr<StoreWait>& self) override {
    return table.changed(prefix_, after_) ? deliver(table.view(prefix_), self) : Job{};
  }
  std::string prefix_;
  std::uint64_t after_;
};

// The wait holds the promise, and the promise a way to end the wait: that one must be weak.
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
  if (!options.deadline) return std::nullopt;
  return Clock::now() + *options.deadline;
}

StoreWaiting<std::string> wait_for_value(std::string key, const CallOptions& options, DropWait drop,
                                         std::shared_ptr<const Loop> loop) {
  return make<ValueWait, std::string>(options, std::move(drop), std::move(loop), std::move(key));
}

StoreWaiting<void> wait_for_keys(std::vector<std::string> keys, const CallOptions& options, DropWait drop,
                                 std::shared_ptr<const Loop> loop) {
  return make<KeysWait, void>(options, std::move(drop), std::move(loop), std::move(keys));
}

StoreWaiting<StoreView> wait_for_change(std::string prefix, std::uint64_t after, const CallOptions& options,
                                        DropWait drop, std::shared_ptr<const Loop> loop) {
  return make<ChangeWait, StoreView>(options, std::move(drop), std::move(loop), std::move(prefix), after);
}

}  // namespace detail

}  // namespace weft::rpc
