#include <weft/parallel/collectives/internal/shm/shared_backend.h>

namespace weft::collectives {
namespace {

// Up to this size a collective in shared memory runs on the thread that starts it: it takes at most about as
// long as ten wake-ups of another thread.
constexpr std::size_t max_bytes_here = 1 << 20;

class SharedExchange final : public Exchange {
 public:
  SharedExchange(std::shared_ptr<BackendOwner> owner, Collective&& collective, SharedQueue& queue)
      : Exchange(std::move(owner), std::move(collective)),
        queue_(queue),
        run_(queue.space(), this->collective) {
    in_use = true;
  }
  void start(bool inlined) override;
  std::uint64_t sequence() const override { return run_.sequence(); }
  bool awaits(int rank) override { return run_.awaits(rank); }
  FlightClock::Ticks arrived() const override { return run_.arrived(); }

 private:
  SharedQueue::RunPtr run() { return {shared_from_this(), &run_}; }
  std::shared_ptr<SharedExchange> self() {
    return std::static_pointer_cast<SharedExchange>(shared_from_this());
  }
  SharedQueue::Done when_over();
  void over(SharedQueue::Outcome outcome);
  void failed(std::exception_ptr error);

  SharedQueue& queue_;
  SharedRun run_;
};

void SharedExchange::start(bool inlined) {
  if (inlined && owner->may_wait_here() && run_.bytes() <= max_bytes_here) {
    if (auto outcome = queue_.run_here(run())) {
      const bool under_way = outcome->ok() && outcome->value() == SharedRun::State::under_way;
      if (!under_way) return over(std::move(*outcome));
      return owner->run_in_turn(
          [self = self()] {
            self->owner->keep(self);
            self->queue_.go_on(self->run(), self->when_over());
          },
          true);
    }
  }
  // Its place in the queue is reserved here: the program's next collective comes after it.
  queue_.push(run(), when_over());
  owner->run_in_turn([self = self()] { self->owner->keep(self); }, inlined);
}

SharedQueue::Done SharedExchange::when_over() {
  return [self = self()](SharedQueue::Outcome outcome) {
    self->owner->run_in_turn(
        [self, outcome = std::move(outcome)]() mutable { self->over(std::move(outcome)); }, true);
  };
}

// Called in turn, or on the thread that has executed the whole collective.
void SharedExchange::over(SharedQueue::Outcome outcome) {
  if (!outcome.ok()) return failed(outcome.error());
  // If an earlier collective has failed, the group may not have been notified yet.
  if (outcome.value() == SharedRun::State::stopped) return failed(queue_.failure());
  if (outcome.value() == SharedRun::State::done) return owner->done(shared_from_this());
  int rank = 0;
  for (const std::string& text : run_.texts()) signatures[rank++] = text;
  owner->differed(shared_from_this());
}

void SharedExchange::failed(std::exception_ptr error) {
  owner->run_in_turn(
      [self = self(), error = std::move(error)] {
        self->in_use = false;
        self->owner->failed(self, error);
      },
      true);
}

}  // namespace

ExchangePtr SharedBackend::make(std::shared_ptr<BackendOwner> owner, Collective&& collective) {
  return std::make_shared<SharedExchange>(std::move(owner), std::move(collective), queue_);
}

}  // namespace weft::collectives
