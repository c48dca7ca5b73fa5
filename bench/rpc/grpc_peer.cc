// gRPC C++: unary calls over one channel, with the faster of its two asynchronous APIs:
//   queue     client and server each poll a completion queue on their main thread
//   callback  gRPC's own threads invoke callbacks
// Cases with 64 calls in flight use the queue only. Tensors are a `bytes` field. Processes of one host use a
// Unix socket.
#include "bench/rpc/work.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <future>
#include <memory>

#include "bench/rpc/grpc_peer.grpc.pb.h"

namespace weft::bench {
namespace {

using proto::Bytes;
using proto::Number;
using Stub = proto::Bench::Stub;
using Queue = grpc::CompletionQueue;

constexpr auto connect_timeout = std::chrono::seconds{10};
enum class Style { queue, callback };

void need(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error("gRPC: " + status.error_message());
}

std::int64_t size_of(const Bytes& bytes) { return static_cast<std::int64_t>(bytes.value().size()); }

// --- Servers. ---

class Step {  // the type behind the tags of a completion queue
 public:
  virtual ~Step() = default;
  virtual bool go() = 0;  // false: this was the last step
};

// Waits for a call of a method, answers it, and waits for the next one.
template <class Request, class Reply>
class Answerer final : public Step {
 public:
  using Service = proto::Bench::AsyncService;
  using Writer = grpc::ServerAsyncResponseWriter<Reply>;
  using Next = void (Service::*)(grpc::ServerContext*, Request*, Writer*, Queue*,
                                 grpc::ServerCompletionQueue*, void*);
  using Answer = void (*)(Request&, Reply&);

  Answerer(Service& service, grpc::ServerCompletionQueue& queue, Next next, Answer answer, bool last = false)
      : service_(service), queue_(queue), next_(next), answer_(answer), last_(last) {
    wait();
  }
  bool go() override {
    if (answering_) {
      if (last_) return false;
      wait();
      return true;
    }
    answering_ = true;
    answer_(request_, reply_);
    writer_->Finish(reply_, grpc::Status::OK, this);
    return true;
  }

 private:
  void wait() {
    answering_ = false;
    writer_.reset();
    context_.emplace();
    writer_.emplace(&*context_);
    (service_.*next_)(&*context_, &request_, &*writer_, &queue_, &queue_, this);
  }

  Service& service_;
  grpc::ServerCompletionQueue& queue_;
  const Next next_;
  const Answer answer_;
  const bool last_;
  bool answering_ = false;
  std::optional<grpc::ServerContext> context_;
  std::optional<Writer> writer_;
  Request request_;
  Reply reply_;
};

class CallbackService final : public proto::Bench::CallbackService {
 public:
  using Reactor = grpc::ServerUnaryReactor;
  Reactor* Echo(grpc::CallbackServerContext* context, const Number* request, Number* reply) override {
    reply->set_value(request->value());
    return finish(context);
  }
  Reactor* Take(grpc::CallbackServerContext* context, const Bytes* request, Number* reply) override {
    reply->set_value(size_of(*request));
    return finish(context);
  }
  Reactor* EchoBytes(grpc::CallbackServerContext* context, const Bytes* request, Bytes* reply) override {
    reply->set_value(request->value());
    return finish(context);
  }

 private:
  static Reactor* finish(grpc::CallbackServerContext* context) {
    Reactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

// Listens and announces its address to the client.
std::unique_ptr<grpc::Server> start(grpc::ServerBuilder& builder, const Work& work, ServerEnd& end) {
  const bool tcp = work.wire == Wire::tcp;
  const std::string path = "unix:" + scratch_path(".sock");
  int port = 0;
  builder.SetMaxReceiveMessageSize(-1);
  builder.AddListeningPort(tcp ? "127.0.0.1:0" : path, grpc::InsecureServerCredentials(), &port);
  auto server = builder.BuildAndStart();
  if (server == nullptr || port <= 0) throw std::runtime_error("gRPC cannot listen");
  end.announce(tcp ? "127.0.0.1:" + std::to_string(port) : path);
  return server;
}

[[noreturn]] void leave(const Work& work) {
  if (work.wire != Wire::tcp) unlink(scratch_path(".sock").c_str());
  _exit(0);  // shutdown is not measured
}

void serve_queue(const Work& work, ServerEnd& end) {
  proto::Bench::AsyncService service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto queue = builder.AddCompletionQueue();
  const auto server = start(builder, work, end);
  std::vector<std::unique_ptr<Step>> steps;
  using Service = proto::Bench::AsyncService;
  const auto echo = [](Number& request, Number& reply) { reply.set_value(request.value()); };
  // Creates one handler more than calls in flight, so that the next call can begin while the last reply is
  // being sent.
  for (std::size_t i = 0; i <= in_flight; ++i)
    steps.push_back(std::make_unique<Answerer<Number, Number>>(service, *queue, &Service::RequestEcho, echo));
  for (int i = 0; i < 2; ++i) {
    steps.push_back(std::make_unique<Answerer<Bytes, Number>>(
        service, *queue, &Service::RequestTake,
        [](Bytes& request, Number& reply) { reply.set_value(size_of(request)); }));
    steps.push_back(std::make_unique<Answerer<Bytes, Bytes>>(
        service, *queue, &Service::RequestEchoBytes,
        [](Bytes& request, Bytes& reply) { reply.mutable_value()->swap(*request.mutable_value()); }));
  }
  steps.push_back(
      std::make_unique<Answerer<Number, Number>>(service, *queue, &Service::RequestEnd, echo, true));
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok) && static_cast<Step*>(tag)->go()) {
  }
  end.wait_for_client();
  leave(work);
}

void serve_callback(const Work& work, ServerEnd& end) {
  CallbackService service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const auto server = start(builder, work, end);
  end.wait_for_client();
  leave(work);
}

// --- Clients. A method class states how to make a call of the method, and checks the reply. ---

struct EchoMethod {
  using Request = Number;
  using Reply = Number;
  Request request;
  void prepare() { request.set_value(request.value() + 1); }
  bool right(const Reply& reply) const { return reply.value() == request.value(); }
  static auto begin(Stub& stub, grpc::ClientContext& context, const Request& request, Queue& queue) {
    return stub.AsyncEcho(&context, request, &queue);
  }
  static grpc::Status call(Stub& stub, grpc::ClientContext& context, const Request& request, Reply& reply) {
    return stub.Echo(&context, request, &reply);
  }
  template <class Done>
  static void call_back(Stub& stub, grpc::ClientContext& context, const Request& request, Reply& reply,
                        Done done) {
    stub.async()->Echo(&context, &request, &reply, done);
  }
};

struct TakeMethod {
  using Request = Bytes;
  using Reply = Number;
  Request request;
  void prepare() {}
  bool right(const Reply& reply) const { return reply.value() == size_of(request); }
  static auto begin(Stub& stub, grpc::ClientContext& context, const Request& request, Queue& queue) {
    return stub.AsyncTake(&context, request, &queue);
  }
  template <class Done>
  static void call_back(Stub& stub, grpc::ClientContext& context, const Request& request, Reply& reply,
                        Done done) {
    stub.async()->Take(&context, &request, &reply, done);
  }
};

struct EchoBytesMethod {
  using Request = Bytes;
  using Reply = Bytes;
  Request request;
  void prepare() {}
  bool right(const Reply& reply) const {
    return reply.value().size() == request.value().size() && reply.value().back() == request.value().back();
  }
  static auto begin(Stub& stub, grpc::ClientContext& context, const Request& request, Queue& queue) {
    return stub.AsyncEchoBytes(&context, request, &queue);
  }
  template <class Done>
  static void call_back(Stub& stub, grpc::ClientContext& context, const Request& request, Reply& reply,
                        Done done) {
    stub.async()->EchoBytes(&context, &request, &reply, done);
  }
};

template <class Method>
class QueueCall {
 public:
  explicit QueueCall(Method method) : method_(std::move(method)) {}
  void begin(Stub& stub, Queue& queue) {
    method_.prepare();
    reader_.reset();
    context_.emplace();
    reader_ = Method::begin(stub, *context_, method_.request, queue);
    reader_->Finish(&reply_, &status_, this);
  }
  void check() const {
    need(status_);
    expect_answer(method_.right(reply_));
  }

 private:
  Method method_;
  std::optional<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<typename Method::Reply>> reader_;
  typename Method::Reply reply_;
  grpc::Status status_;
};

// Keeps `calls` calls in flight. Invokes `begins` before each call and `ended` after it. Stops when `ended`
// returns false.
template <class Method, class Begins, class Ended>
void call_by_queue(Stub& stub, const Method& method, std::size_t calls, Begins begins, Ended ended) {
  Queue queue;
  std::vector<std::unique_ptr<QueueCall<Method>>> all;
  for (std::size_t i = 0; i < calls; ++i) {
    begins();
    all.push_back(std::make_unique<QueueCall<Method>>(method));
    all.back()->begin(stub, queue);
  }
  void* tag = nullptr;
  bool ok = false;
  bool more = true;
  for (std::size_t left = calls; left != 0 && queue.Next(&tag, &ok);) {
    auto& call = *static_cast<QueueCall<Method>*>(tag);
    call.check();
    more = more && ended();
    if (more) {
      begins();
      call.begin(stub, queue);
    } else {
      --left;
    }
  }
}

// Makes one call at a time. The callback of each reply makes the next call.
template <class Method, class Begins, class Ended>
class CallbackCall {
 public:
  CallbackCall(Stub& stub, const Method& method, Begins begins, Ended ended)
      : stub_(stub), method_(method), begins_(begins), ended_(ended) {}
  void run() {
    call();
    done_.get_future().get();
  }

 private:
  void call() {
    begins_();
    method_.prepare();
    // Uses another context than the call whose callback may be running now.
    auto& context = contexts_[turn_++ % contexts_.size()].emplace();
    Method::call_back(stub_, context, method_.request, reply_,
                      [this](const grpc::Status& status) { answered(status); });
  }
  void answered(const grpc::Status& status) {
    try {
      need(status);
      expect_answer(method_.right(reply_));
      if (ended_()) return call();
    } catch (...) {
      return done_.set_exception(std::current_exception());
    }
    done_.set_value();
  }

  Stub& stub_;
  Method method_;
  Begins begins_;
  Ended ended_;
  std::array<std::optional<grpc::ClientContext>, 2> contexts_;
  std::size_t turn_ = 0;
  typename Method::Reply reply_;
  std::promise<void> done_;
};

template <class Method, class Begins, class Ended>
void call_in_style(Style style, Stub& stub, const Method& method, Begins begins, Ended ended) {
  if (style == Style::queue) return call_by_queue(stub, method, 1, begins, ended);
  CallbackCall(stub, method, begins, ended).run();
}

template <class Method>
Figures latency(Style style, Stub& stub, const Method& method, const Budget& budget) {
  LatencyMeter meter(budget);
  call_in_style(style, stub, method, [&] { meter.begin(); }, [&] { return meter.end(); });
  return meter.figures();
}

Figures get_one_by_one(Stub& stub, const Budget& budget) {
  LatencyMeter meter(budget);
  EchoMethod method;
  do {
    Number reply;
    grpc::ClientContext context;
    method.prepare();
    meter.begin();
    need(EchoMethod::call(stub, context, method.request, reply));
    expect_answer(method.right(reply));
  } while (meter.end());
  return meter.figures();
}

Figures figures(const Work& work, Style style, Stub& stub, const Budget& budget) {
  Bytes tensor;
  tensor.set_value(
      std::string(work.kind == Kind::small_tensor ? small_elements * sizeof(float) : work.bytes, '\1'));
  const auto nothing = [] {};
  RateMeter rate(budget);
  const auto counted = [&] { return rate.count(1); };
  switch (work.kind) {
    case Kind::get:
      return get_one_by_one(stub, budget);
    case Kind::throughput:
      call_by_queue(stub, EchoMethod{}, in_flight, nothing, counted);
      return rate.calls();
    case Kind::bulk:
      call_in_style(style, stub, TakeMethod{std::move(tensor)}, nothing, counted);
      return rate.bandwidth(work.bytes);
    case Kind::small_tensor:
    case Kind::echo:
      return latency(style, stub, EchoBytesMethod{std::move(tensor)}, budget);
    default:
      return latency(style, stub, EchoMethod{}, budget);
  }
}

void measure(const Work& work, Style style, ClientEnd& end) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(end.address(), grpc::InsecureChannelCredentials(), arguments);
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + connect_timeout))
    throw std::runtime_error("gRPC cannot connect");
  const auto stub = proto::Bench::NewStub(channel);
  const Figures found = figures(work, style, *stub, end.budget());
  if (style == Style::queue) {
    grpc::ClientContext context;
    Number reply;
    need(stub->End(&context, Number{}, &reply));
  }
  end.report(found);
  _exit(0);
}

std::string caller(const Work& work, Style style) {
  if (work.kind == Kind::get) return "stub on main";
  return style == Style::queue ? "completion queue on main" : "callback on gRPC's threads";
}

Way way(const Work& work, Style style) {
  return {style == Style::queue ? "queue" : "callback", [=](const Setting& setting) {
            Outcome outcome = measure_pair({.serve =
                                                [=](ServerEnd& end) {
                                                  style == Style::queue ? serve_queue(work, end)
                                                                        : serve_callback(work, end);
                                                },
                                            .measure = [=](ClientEnd& end) { measure(work, style, end); }},
                                           setting);
            outcome.notes["caller"] = caller(work, style);
            return outcome;
          }};
}

}  // namespace

std::optional<Contender> grpc_peer(const Work& work) {
  if (!is_plain(work.kind) || work.wire == Wire::shared_memory) return std::nullopt;
  // This peer cannot spin. In the cases of one host, it is compared with peers that spin.
  if (work.wait == Wait::spinning && work.wire != Wire::same_host) return std::nullopt;
  std::vector<Way> ways{way(work, Style::queue)};
  if (work.kind != Kind::throughput) ways.push_back(way(work, Style::callback));
  return Contender{"grpc", notes_of(Wait::blocking, ""),
                   [ways](const Setting& setting) { return measure_best(ways, setting); }};
}

}  // namespace weft::bench
