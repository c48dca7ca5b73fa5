// BatchedService: a method that answers the requests of many callers with one run of a function for many
// requests, as a model computes a batch in hardly more time than one row.
//
//   auto predict = dist_optim::batched<"predict">(
//       [model](std::vector<Features> batch) { return scores(*model, batch); },   // one answer for each
//       request
//       {.max_batch = 256, .max_delay = std::chrono::milliseconds{2}});
//   agent.serve(predict);
//   ...
//   using Predict = dist_optim::BatchedService<"predict", Features, Score>;       // the caller
//   Score score = co_await peer.call<&Predict::run>(features);
//
// Requests wait for others for max_delay at most, or until a batch is full; those that arrive while a batch
// runs form the next one. A request whose deadline has passed, or whose caller has cancelled it, is not
// computed. If max_queued requests wait, further ones fail at once with resource_exhausted.
//
// The function runs on threads of the service, without the thread-local state of a call: it sets grad mode
// and autocast itself. If it throws, the requests of that batch fail with its exception; to fail a single
// request, it returns rpc::Result<Response> for each. Requests of different lengths are padded by the
// function; `length` and `max_padded` limit what this costs. The end of the service fails the requests that
// wait, and waits for the batches that run. Thread-safe.
#pragma once

#include <weft/dist_optim/serve/batch_queue.h>
#include <weft/rpc/call/method.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/fixed_string.h>
#include <weft/rpc/core/future.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::dist_optim {

// The limits of a service, and how it sees a request.
template <class Request>
struct BatchOptions {
  // As in BatchLimits.
  std::size_t max_batch = BatchLimits{}.max_batch;
  std::chrono::nanoseconds max_delay = BatchLimits{}.max_delay;
  std::size_t max_padded = BatchLimits{}.max_padded;

  std::size_t max_queued = 4096;  // requests that wait, at most
  std::size_t threads = 1;        // batches that run at the same time
  // Called once for each request, on a loop of the agent, so they must return at once. priority: requests
  // with a higher one run first; 0 without a function. length: for max_padded; 1 without a function.
  std::function<int(const Request&)> priority = {};
  std::function<std::size_t(const Request&)> length = {};
};

template <rpc::FixedString name, class Request, class Response>
class BatchedService {
 public:
  // One answer for each request.
  using Answers = std::vector<rpc::Result<Response>>;
  // Returns as many answers as there are requests, in their order.
  using Function = std::function<Answers(std::vector<Request>)>;

  // Throws invalid_argument if a limit is 0.
  BatchedService(Function function, BatchOptions<Request> options)
      : function_(std::move(function)),
        options_(std::move(options)),
        queue_(std::string(name.view()), {options_.max_batch, options_.max_delay, options_.max_padded},
               options_.max_queued, options_.threads,
               [this](detail::BatchItems items, const auto& count) { run_batch(std::move(items), count); }) {}

  // The method that peers call.
  rpc::Future<Response> run(rpc::CallContext& call, Request request) {
    auto item = std::make_unique<Item>();
    item->call = call.shared_from_this();
    if (options_.priority) item->queued.priority = options_.priority(request);
    if (options_.length) item->queued.length = options_.length(request);
    item->request = std::move(request);
    rpc::Future<Response> answer = item->answer.future();
    queue_.add(std::move(item));
    return answer;
  }
  // Also a method.
  BatchStats stats() const { return queue_.stats(); }

  using Service = rpc::Service<name, rpc::Method<"run", &BatchedService::run, rpc::non_blocking>,
                               rpc::Method<"stats", &BatchedService::stats, rpc::idempotent>>;

 private:
  struct Item final : detail::BatchItem {
    void fail(std::exception_ptr error) override { answer.fail(std::move(error)); }
    Request request{};
    rpc::Promise<Response> answer;
  };

  void run_batch(detail::BatchItems items, const std::function<void(std::size_t)>& count) const {
    std::vector<Request> requests;
    for (const auto& item : items) requests.push_back(std::move(static_cast<Item&>(*item).request));
    Answers answers;
    try {
      answers = function_(std::move(requests));
      if (answers.size() != items.size())
        throw rpc::Error(rpc::ErrorKind::handler_failed,
                         "batched service '" + std::string(name.view()) + "': the function returned " +
                             std::to_string(answers.size()) + " answers, expected " +
                             std::to_string(items.size()) + ", one for each request");
    } catch (...) {
      answers.assign(items.size(), std::current_exception());
    }
    const auto failed = std::count_if(answers.begin(), answers.end(), [](const auto& each) { return !each; });
    count(static_cast<std::size_t>(failed));
    for (std::size_t i = 0; i < items.size(); ++i)
      static_cast<Item&>(*items[i]).answer.complete(std::move(answers[i]));
  }

  const Function function_;
  const BatchOptions<Request> options_;
  detail::BatchQueue queue_;  // the last member, because its threads use the others
};

namespace detail {

template <class F>
struct BatchFunction;
template <class Response>
struct BatchAnswer {
  using Type = Response;
};
template <class Response>
struct BatchAnswer<rpc::Result<Response>> {
  using Type = Response;
};
template <class Answers, class Requests>
struct BatchFunction<std::function<Answers(Requests)>> {
  using RequestType = typename std::decay_t<Requests>::value_type;
  using ResponseType = typename BatchAnswer<typename Answers::value_type>::Type;
};

}  // namespace detail

// The service of a function std::vector<Response>(std::vector<Request>), or with rpc::Result<Response>.
template <rpc::FixedString name, class F,
          class Types = detail::BatchFunction<decltype(std::function(std::declval<F>()))>>
auto batched(F function, BatchOptions<typename Types::RequestType> options = {}) {
  using Request = typename Types::RequestType;
  using Service = BatchedService<name, Request, typename Types::ResponseType>;
  return std::make_shared<Service>(
      [function = std::move(function)](std::vector<Request> requests) mutable {
        auto answers = function(std::move(requests));
        return typename Service::Answers(std::make_move_iterator(answers.begin()),
                                         std::make_move_iterator(answers.end()));
      },
      std::move(options));
}

}  // namespace weft::dist_optim
