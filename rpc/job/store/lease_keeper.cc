#include <weft/rpc/job/store/lease_keeper.h>

#include <weft/rpc/core/while_alive.h>

#include <atomic>

namespace weft::rpc {

// The store's futures and the loop's timer refer to the State weakly. All members except the atomic are used
// on the loop.
struct LeaseKeeper::State : std::enable_shared_from_this<State> {
  State(std::shared_ptr<Store> s, std::shared_ptr<Loop> l, StoreLease k, Lost f)
      : store(std::move(s)), loop(std::move(l)), lease(k), lost(std::move(f)) {}

  const std::shared_ptr<Store> store;
  const std::shared_ptr<Loop> loop;
  const StoreLease lease;
  Lost lost;
  Loop::TimerId timer = 0;
  bool ended = false;
  std::atomic<Clock::time_point> renewed{loop->now()};

  void wait(std::chrono::nanoseconds time) {
    if (ended) return;
    timer = loop->schedule(later(loop->now(), time), while_alive(this, [](auto& keeper) { keeper.renew(); }));
  }
  void renew() {
    timer = 0;
    // Keep the loop for the posted function: the store may answer after the keeper was destroyed.
    store->renew(lease.id).then([loop = loop, weak = weak_from_this()](Result<void>&& result) {
      loop->post([weak, result = std::move(result)] {
        if (const auto keeper = weak.lock()) keeper->answered(result);
      });
    });
  }
  void answered(const Result<void>& result) {
    if (ended) return;
    if (result.ok()) {
      renewed = loop->now();
      return wait(lease.ttl / 3);
    }
    if (error_kind(result.error()) != ErrorKind::lease_lost) return wait(lease.ttl / 6);
    ended = true;
    Lost on_lost = std::move(lost);
    on_lost(*as_error(result.error()));
  }
  void end() {
    ended = true;
    if (timer != 0) loop->cancel(std::exchange(timer, 0));
  }
};

LeaseKeeper::LeaseKeeper(std::shared_ptr<Store> store, std::shared_ptr<Loop> loop, StoreLease lease,
                         Lost lost)
    : state_(std::make_shared<State>(std::move(store), std::move(loop), lease, std::move(lost))) {
  state_->loop->post([state = state_] { state->wait(state->lease.ttl / 3); });
}

std::chrono::nanoseconds LeaseKeeper::silence() const { return state_->loop->now() - state_->renewed.load(); }

LeaseKeeper::~LeaseKeeper() {
  state_->loop->post([state = state_] { state->end(); });
}

}  // namespace weft::rpc
