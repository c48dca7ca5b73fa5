#include <weft/parallel/pipeline/internal/group_messages.h>

#include <weft/parallel/pipeline/internal/sent_values.h>
#include <weft/parallel/pipeline/internal/ties.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>

namespace weft::pipeline {

using Key = ValueExchange::Key;

namespace {

// The tag of a value. It does not collide with the tags of programs, which start at 0.
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

  // route: null for values that are sent through host memory.
  Receiver(const GroupMessages& of, int from, std::shared_ptr<DeviceRoute> route, std::deque<Expected> values)
      : group_(of.group_),
        exchange_(of.exchange_),
        in_flight_(of.in_flight_),
        from_(from),
        route_(std::move(route)),
        values_(std::move(values)) {
    if (route_ != nullptr)
      reader_ = c10::impl::VirtualGuardImpl(route_->device().type()).getStream(route_->device());
  }

  // Allows one more value to arrive.
  void next() {
    rpc::MutexLock lock(mutex_);
    if (route_ != nullptr) {
      ++credits_;
      lock.unlock();
      return next_of_route();
    }
    if (values_.empty()) return;
    const Expected next = values_.front();
    values_.pop_front();
    lock.unlock();
    group_.recv_object<SentValues>(from_, next.tag, no_timeout)
        .then([self = shared_from_this(), next](rpc::Result<SentValues>&& came) {
          if (!came.ok()) return self->fail(came.error());
          self->came(next, std::move(came).get());
        });
  }

 private:
  // Receives the next value of a route, which delivers values one at a time, in the order in which they were
  // sent.
  void next_of_route() {
    {
      rpc::MutexLock lock(mutex_);
      if (receiving_ || credits_ == 0 || values_.empty()) return;
      receiving_ = true;
      --credits_;
    }
    route_->receive(*reader_, [self = shared_from_this()](rpc::Result<DeviceRoute::Arrival>&& result) {
      if (!result.ok()) return self->fail(result.error());
      DeviceRoute::Arrival arrival = std::move(result).get();
      std::optional<Expected> expected;
      {
        rpc::MutexLock lock(self->mutex_);
        const auto found =
            std::find_if(self->values_.begin(), self->values_.end(),
                         [&](const Expected& each) { return each.key.microbatch == arrival.microbatch; });
        if (found != self->values_.end()) {
          expected = *found;
          self->values_.erase(found);
        }
        self->receiving_ = false;
      }
      if (!expected)
        return self->fail("values of micro-batch " + std::to_string(arrival.microbatch) +
                          ", expected a micro-batch whose values have not arrived");
      self->came(*expected, std::move(arrival.values));
      self->next_of_route();
    });
  }

  void came(const Expected& expected, SentValues value) {
    if (!value.has(expected.values))
      return fail(std::to_string(value.values.size()) + " values, expected " +
                  std::to_string(expected.values));
    rpc::Promise<void> used;
    used.future().then([self = shared_from_this()](rpc::Result<void>&& taken) {
      if (taken.ok()) self->next();
    });
    exchange_->put(expected.key, std::move(value).take(), std::move(used));
  }
  void fail(const std::string& sent) {
    fail(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::invalid_argument, "rank " + std::to_string(from_) + " sent " + sent)));
  }
  void fail(const std::exception_ptr& error) {
    exchange_->fail(error);
    in_flight_->wake();
  }

  const collectives::Group group_;
  const std::shared_ptr<ValueExchange> exchange_;
  const std::shared_ptr<InFlight> in_flight_;
  const int from_;
  const std::shared_ptr<DeviceRoute> route_;
  std::optional<c10::Stream> reader_;  // of a route: computes with the values
  rpc::Mutex mutex_;
  std::deque<Expected> values_ WEFT_GUARDED_BY(mutex_);
  bool receiving_ WEFT_GUARDED_BY(mutex_) = false;  // from a route
  int credits_ WEFT_GUARDED_BY(mutex_) = 0;         // of a route
};

GroupMessages::GroupMessages(collectives::Group group, const StageGraph& graph,
                             const schedule::Schedule& schedule, const Credits& credits,
                             const DeviceRoutes& devices, std::shared_ptr<ValueExchange> exchange,
                             std::chrono::nanoseconds timeout)
    : group_(std::move(group)),
      graph_(graph),
      schedule_(schedule),
      credits_(credits),
      devices_(devices),
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
    const auto route = devices_.find({edge, gradient, from, group_.rank()});
    const auto receiver = std::make_shared<Receiver>(
        *this, from, route == devices_.end() ? nullptr : route->second, std::move(values));
    for (int ahead = credits_.at({edge, gradient}); ahead > 0; --ahead) receiver->next();
  }
}

void GroupMessages::send(const Key& key, Values values) const {
  const int to = schedule_.rank_of(key.to(), key.microbatch);
  if (to == group_.rank()) return exchange_->put(key, std::move(values));
  in_flight_->add(key, to, timeout_);
  const auto route = devices_.find({key.edge, key.gradient, group_.rank(), to});
  auto sent = route == devices_.end()
                  ? group_.send_object(SentValues::of(values), to, tag_of(routes_, key), no_timeout)
                  : route->second->send(key.microbatch, values);
  std::move(sent).then([exchange = exchange_, in_flight = in_flight_, key, to](rpc::Result<void>&& received) {
    if (!received.ok()) exchange->fail(received.error());
    in_flight->used(key, to);
  });
}

}  // namespace weft::pipeline
