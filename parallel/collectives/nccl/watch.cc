#include <weft/parallel/collectives/nccl/watch.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace weft::collectives::nccl {

struct Watch::State : std::enable_shared_from_this<State> {
  std::shared_ptr<rpc::Loop> loop;
  std::chrono::nanoseconds interval;

  std::mutex mutex;  // guards what follows
  std::vector<std::shared_ptr<Watched>> watched;
  bool armed = false;  // a look is posted or scheduled
  bool ended = false;

  // The next look. A loop that ends drops it, and what is watched may hold the Watch: that is let go of then.
  class Due {
   public:
    explicit Due(std::shared_ptr<State> state) : state_(std::move(state)) {}
    Due(Due&&) noexcept = default;
    Due& operator=(Due&&) = delete;
    ~Due() {
      if (state_ != nullptr) state_->end();
    }
    void operator()() { std::exchange(state_, nullptr)->look(); }

   private:
    std::shared_ptr<State> state_;
  };

  void arm() {  // on the loop
    loop->schedule(rpc::later(loop->now(), interval), Due(shared_from_this()));
  }

  void end() {
    std::vector<std::shared_ptr<Watched>> dropped;  // outside the lock
    std::lock_guard lock(mutex);
    ended = true;
    dropped.swap(watched);
  }

  void look() {
    std::vector<std::shared_ptr<Watched>> all;
    {
      std::lock_guard lock(mutex);
      all = watched;
    }
    const auto now = loop->now();
    // What says that it is done leaves before it is asked: who adds it again meanwhile is not overlooked.
    for (const auto& one : all) {
      {
        std::lock_guard lock(mutex);
        if (ended) return;
        std::erase(watched, one);
      }
      if (!one->look(now)) continue;
      std::lock_guard lock(mutex);
      if (std::find(watched.begin(), watched.end(), one) == watched.end()) watched.push_back(one);
    }
    all.clear();
    std::lock_guard lock(mutex);
    if (ended || watched.empty()) {
      armed = false;
      return;
    }
    arm();
  }
};

Watch::Watch(std::shared_ptr<rpc::Loop> loop, std::chrono::nanoseconds interval)
    : state_(std::make_shared<State>()) {
  state_->loop = std::move(loop);
  state_->interval = interval;
}

Watch::~Watch() { state_->end(); }

void Watch::end() { state_->end(); }

const std::shared_ptr<rpc::Loop>& Watch::loop() const { return state_->loop; }

void Watch::add(std::shared_ptr<Watched> watched) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->ended) return;
    if (std::find(state_->watched.begin(), state_->watched.end(), watched) == state_->watched.end())
      state_->watched.push_back(std::move(watched));
    if (std::exchange(state_->armed, true)) return;
  }
  state_->loop->post(State::Due(state_));  // a loop that has ended runs it, or drops it, here
}

}  // namespace weft::collectives::nccl
