#include <weft/parallel/collectives/internal/shm/shared_backend.h>

#include <weft/parallel/collectives/internal/group/group_collectives.h>

namespace weft::collectives {
namespace {

// Up to this size a collective in shared memory runs on the thread that starts it: it takes at most about as
// long as ten wake-ups of another thread.
constexpr std::size_t max_bytes_here = 1 << 20;

class SharedCollective final : public CollectiveInFlight {
 public:
  SharedCollective(std::shared_ptr<GroupCollectives> group, Collective&& arguments, SharedQueue& queue)
      : CollectiveInFlight(std::move(group), std::move(arguments)),
        queue_(queue),
        transfer_(queue.space(), collective()) {
    use_memory(true);
  }
  void start(bool inlined) override;
  std::uint64_t sequence() const override { return transfer_.sequence(); }
  bool awaits(int rank) override { return transfer_.awaits(rank); }
  FlightClock::Ticks arrived() const override { return transfer_.arrived(); }

 private:
  SharedQueue::TransferPtr transfer() { return {shared_from_this(), &transfer_}; }
  std::shared_ptr<SharedCollective> self() {
    return std::static_pointer_cast<SharedCollective>(shared_from_this());
  }
  SharedQueue::Done when_over();
  void over(SharedQueue::Outcome outcome);
  void failed(std::exception_ptr error);

  SharedQueue& queue_;
  SharedTransfer transfer_;
};

void SharedCollective::start(bool inlined) {
  if (inlined && group().may_wait_here() && transfer_.bytes() <= max_bytes_here) {
    if (auto outcome = queue_.run_here(transfer())) {
      const bool in_progress = outcome->ok() && outcome->value() == SharedTransfer::State::in_progress;
      if (!in_progress) return over(std::move(*outcome));
      return group().run_in_turn(
          [self = self()] {
            self->group().keep(self);
            self->queue_.continue_async(self->transfer(), self->when_over());
          },
          true);
    }
  }
  // Its place in the queue is reserved here: the program's next collective comes after it.
  queue_.push(transfer(), when_over());
  group().run_in_turn([self = self()] { self->group().keep(self); }, inlined);
}

SharedQueue::Done SharedCollective::when_over() {
  return [self = self()](SharedQueue::Outcome outcome) {
    self->group().run_in_turn(
        [self, outcome = std::move(outcome)]() mutable { self->over(std::move(outcome)); }, true);
  };
}

// Called in turn, or on the thread that has executed the whole collective.
void SharedCollective::over(SharedQueue::Outcome outcome) {
  if (!outcome.ok()) return failed(outcome.error());
  // If an earlier collective has failed, the group may not have been notified yet.
  if (outcome.value() == SharedTransfer::State::stopped) return failed(queue_.failure());
  if (outcome.value() == SharedTransfer::State::done) return group().done(shared_from_this());
  std::map<int, std::string> texts;
  for (const std::string& text : transfer_.texts()) texts.emplace(texts.size(), text);
  group().differed(shared_from_this(), texts);
}

void SharedCollective::failed(std::exception_ptr error) {
  group().run_in_turn(
      [self = self(), error = std::move(error)] {
        self->use_memory(false);
        self->group().failed(self, error);
      },
      true);
}

}  // namespace

std::shared_ptr<CollectiveInFlight> SharedBackend::make(std::shared_ptr<GroupCollectives> group,
                                                        Collective&& collective) {
  return std::make_shared<SharedCollective>(std::move(group), std::move(collective), queue_);
}

}  // namespace weft::collectives
