#include <weft/parallel/collectives/nccl/internal/watch.h>

#include <weft/rpc/core/mutex.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace weft::collectives::nccl {

struct Watch::State : std::enable_shared_from_this<State> {
  std::shared_ptr<rpc::Loop> loop;
  WatchInterval interval;

  rpc::Mutex mutex;
  std::vector<std::shared_ptr<Watched>> watched WEFT_GUARDED_BY(mutex);
  bool armed WEFT_GUARDED_BY(mutex) = false;          // a look is posted or scheduled
  bool waits_longer WEFT_GUARDED_BY(mutex) = false;   // it is scheduled after more than the shortest interval
  std::uint64_t next_due WEFT_GUARDED_BY(mutex) = 0;  // the number of that look; earlier ones are void
  rpc::Clock::time_point added_at WEFT_GUARDED_BY(mutex);
  bool ended WEFT_GUARDED_BY(mutex) = false;

  // The next look. A loop that ends destroys this object without running it. The watched objects, which may
  // hold the Watch, are then released.
  class Due {
   public:
    Due(std::shared_ptr<State> state, std::uint64_t number) : state_(std::move(state)), number_(number) {}
    Due(Due&&) noexcept = default;
    Due& operator=(Due&&) = delete;
    ~Due() {
      if (state_ != nullptr) state_->dropped(number_);
    }
    void operator()() { std::exchange(state_, nullptr)->look(number_); }

   private:
    std::shared_ptr<State> state_;
    std::uint64_t number_;
  };

  void arm() WEFT_REQUIRES(mutex) {  // on the loop
    const auto now = loop->now();
    const auto wait =
        std::clamp<std::chrono::nanoseconds>((now - added_at) / 16, interval.shortest, interval.longest);
    waits_longer = wait > interval.shortest;
    loop->schedule(rpc::later(now, wait), Due(shared_from_this(), ++next_due));
  }

  void dropped(std::uint64_t number) {
    {
      rpc::MutexLock lock(mutex);
      if (number != next_due) return;
    }
    end();
  }

  void end() {
    std::vector<std::shared_ptr<Watched>> dropped;  // outside the lock
    rpc::MutexLock lock(mutex);
    ended = true;
    dropped.swap(watched);
  }

  void look(std::uint64_t number) {
    std::vector<std::shared_ptr<Watched>> all;
    {
      rpc::MutexLock lock(mutex);
      if (number != next_due) return;
      waits_longer = false;
      all = watched;
    }
    const auto now = loop->now();
    // An object is removed before it is polled: if another thread adds it again meanwhile, it is not missed.
    for (const auto& one : all) {
      {
        rpc::MutexLock lock(mutex);
        if (ended) return;
        std::erase(watched, one);
      }
      if (!one->look(now)) continue;
      rpc::MutexLock lock(mutex);
      if (ended) return;
      if (std::find(watched.begin(), watched.end(), one) == watched.end()) watched.push_back(one);
    }
    all.clear();
    rpc::MutexLock lock(mutex);
    if (ended || watched.empty()) {
      armed = false;
      return;
    }
    arm();
  }
};

Watch::Watch(std::shared_ptr<rpc::Loop> loop, WatchInterval interval) : state_(std::make_shared<State>()) {
  state_->loop = std::move(loop);
  state_->interval = interval;
}

Watch::~Watch() { state_->end(); }

void Watch::end() { state_->end(); }

const std::shared_ptr<rpc::Loop>& Watch::loop() const { return state_->loop; }

void Watch::add(std::shared_ptr<Watched> watched) {
  std::uint64_t number = 0;
  {
    rpc::MutexLock lock(state_->mutex);
    if (state_->ended) return;
    if (std::find(state_->watched.begin(), state_->watched.end(), watched) == state_->watched.end())
      state_->watched.push_back(std::move(watched));
    state_->added_at = state_->loop->now();
    if (std::exchange(state_->armed, true) && !std::exchange(state_->waits_longer, false)) return;
    number = ++state_->next_due;
  }
  state_->loop->post(State::Due(state_, number));  // a loop that has ended runs it, or drops it, here
}

}  // namespace weft::collectives::nccl
