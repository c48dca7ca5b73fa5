#include <weft/parallel/pipeline/internal/group_messages.h>

#include <weft/parallel/pipeline/internal/sent_values.h>
#include <weft/parallel/pipeline/internal/ties.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>

namespace weft::pipeline {

using Key = ValueExchange::Key;

namespace {

// Does not collide with tags of programs, which start at 0.
std::uint64_t tag_of(const std::vector<schedule::Edge>& routes, const Key& key) {
  const auto edge = std::lower_bound(routes.begin(), routes.end(), key.edge) - routes.begin();
  return (std::uint64_t{0x7069} << 48) | (std::uint64_t{key.gradient} << 47) |
         (static_cast<std::uint64_t>(edge) << 24) | static_cast<std::uint64_t>(key.microbatch);
}

}  // namespace

// Receives the values of one edge and direction from one rank.
class GroupMessages::Receiver : public std::enable_shared_from_this<Receiver> {
 public:
  struct Expected {
    Key key;
    std::uint64_t tag = 0;
    std::size_t values = 0;
  };

  Receiver(const GroupMessages& of, int from, std::deque<Expected> values)
      : group_(of.group_),
        exchange_(of.exchange_),
        in_flight_(of.in_flight_),
        from_(from),
        values_(std::move(values)) {}

  void next() {
    std::unique_lock lock(mutex_);
    if (values_.empty()) return;
    const Expected next = values_.front();
    values_.pop_front();
    lock.unlock();
    group_.recv_object<SentValues>(from_, next.tag, no_timeout)
        .then([self = shared_from_this(), next](rpc::Result<SentValues>&& came) {
          self->came(next, std::move(came));
        });
  }

 private:
  void came(const Expected& expected, rpc::Result<SentValues>&& result) {
    if (!result.ok()) return fail(result.error());
    SentValues value = std::move(result).get();
    if (!value.has(expected.values))
      return fail(std::make_exception_ptr(rpc::Error(
          rpc::ErrorKind::invalid_argument, "rank " + std::to_string(from_) + " sent " +
                                                std::to_string(value.values.size()) + " values, expected " +
                                                std::to_string(expected.values))));
    rpc::Promise<void> used;
    used.future().then([self = shared_from_this()](rpc::Result<void>&& taken) {
      if (taken.ok()) self->next();
    });
    exchange_->put(expected.key, std::move(value).take(), std::move(used));
  }
  void fail(const std::exception_ptr& error) {
    exchange_->fail(error);
    in_flight_->wake();
  }

  const collectives::Group group_;
  const std::shared_ptr<ValueExchange> exchange_;
  const std::shared_ptr<InFlight> in_flight_;
  const int from_;
  std::mutex mutex_;  // guards values_
  std::deque<Expected> values_;
};

GroupMessages::GroupMessages(collectives::Group group, const StageGraph& graph,
                             const schedule::Schedule& schedule, const Credits& credits,
                             std::shared_ptr<ValueExchange> exchange, std::chrono::nanoseconds timeout)
    : group_(std::move(group)),
      graph_(graph),
      schedule_(schedule),
      credits_(credits),
      exchange_(std::move(exchange)),
      in_flight_(std::make_shared<InFlight>(credits, *exchange_)),
      timeout_(timeout),
      ties_(tie_messages(graph, schedule)) {
  std::set<schedule::Edge> routes(schedule.edges.begin(), schedule.edges.end());
  for (const Key& message : ties_) routes.insert(message.edge);
  routes_.assign(routes.begin(), routes.end());
}

void GroupMessages::receive(bool with_backward, std::size_t microbatches) const {
  std::map<std::tuple<schedule::Edge, bool, int>, std::deque<Receiver::Expected>> expected;
  const auto expect = [&](const Key& key) {
    const int from = schedule_.rank_of(key.from(), key.microbatch);
    if (from != group_.rank())
      expected[{key.edge, key.gradient, from}].push_back(
          {key, tag_of(routes_, key), values_in(key, graph_, schedule_)});
  };
  for (const schedule::Action& each : schedule_.ranks[static_cast<std::size_t>(group_.rank())])
    schedule::for_each_part(each, [&](const schedule::Action& action) {
      using schedule::Op;
      if (action.microbatch < 0 || static_cast<std::size_t>(action.microbatch) >= microbatches) return;
      for (const schedule::Edge& edge : schedule_.edges) {
        if (action.op == Op::forward && edge.to == action.stage) expect({edge, action.microbatch, false});
        if (with_backward && (action.op == Op::backward || action.op == Op::input_gradient) &&
            edge.from == action.stage)
          expect({edge, action.microbatch, true});
      }
    });
  for (const Key& message : ties_)
    if (with_backward && schedule_.rank_of(message.to(), message.microbatch) == group_.rank())
      expect(message);
  for (auto& [of, values] : expected) {
    const auto& [edge, gradient, from] = of;
    const auto receiver = std::make_shared<Receiver>(*this, from, std::move(values));
    for (int ahead = credits_.at({edge, gradient}); ahead > 0; --ahead) receiver->next();
  }
}

void GroupMessages::send(const Key& key, Values values) const {
  const int to = schedule_.rank_of(key.to(), key.microbatch);
  if (to == group_.rank()) return exchange_->put(key, std::move(values));
  in_flight_->add(key, to, timeout_);
  group_.send_object(SentValues::of(values), to, tag_of(routes_, key), no_timeout)
      .then([exchange = exchange_, in_flight = in_flight_, key, to](rpc::Result<void>&& received) {
        if (!received.ok()) exchange->fail(received.error());
        in_flight->used(key, to);
      });
}

}  // namespace weft::pipeline
