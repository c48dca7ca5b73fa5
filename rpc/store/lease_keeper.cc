#include <weft/rpc/store/lease_keeper.h>

namespace weft::rpc {
namespace {

bool says_lost(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& own) {
    return own.kind() == ErrorKind::lease_lost;
  } catch (...) {
    return false;
  }
}

}  // namespace

// The store's futures and the loop's timer hold it weakly. What has no other mark belongs to the loop.
struct LeaseKeeper::State : std::enable_shared_from_this<State> {
  State(std::shared_ptr<Store> s, std::shared_ptr<Loop> l, StoreLease k, Lost f)
      : store(std::move(s)), loop(std::move(l)), lease(k), lost(std::move(f)) {}

  const std::shared_ptr<Store> store;
  const std::shared_ptr<Loop> loop;
  const StoreLease lease;
  Lost lost;
  Loop::TimerId timer = 0;
  bool ended = false;

  void wait(std::chrono::nanoseconds time) {
    if (ended) return;
    timer = loop->schedule(later(loop->now(), time), [weak = weak_from_this()] {
      if (const auto keeper = weak.lock()) keeper->renew();
    });
  }
  void renew() {
    timer = 0;
    // The loop is held for what is posted to it: the store may answer after the keeper's end.
    store->renew(lease.id).then([loop = loop, weak = weak_from_this()](Result<void>&& renewed) {
      loop->post([weak, renewed = std::move(renewed)] {
        if (const auto keeper = weak.lock()) keeper->answered(renewed);
      });
    });
  }
  void answered(const Result<void>& renewed) {
    if (ended) return;
    if (renewed.ok()) return wait(lease.ttl / 3);
    if (!says_lost(renewed.error())) return wait(lease.ttl / 6);
    ended = true;
    Lost tell = std::move(lost);
    try {
      std::rethrow_exception(renewed.error());
    } catch (const Error& error) {
      tell(error);
    }
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

LeaseKeeper::~LeaseKeeper() {
  state_->loop->post([state = state_] { state->end(); });
}

}  // namespace weft::rpc
