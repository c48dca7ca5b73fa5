// gRPC's callback server, with a batcher as a program writes one: a queue, and a thread that runs the model
// for the requests in it. The client is that of bench_rpc: a completion queue on one thread.
#include "bench/serve/work.h"

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>

#include "bench/rpc/grpc_peer.grpc.pb.h"

namespace weft::bench {
namespace {

using proto::Number;

class BatchingService final : public proto::Bench::CallbackService {
 public:
  explicit BatchingService(const Work& work) : work_(work), thread_([this] { run(); }) {}
  ~BatchingService() override {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  grpc::ServerUnaryReactor* Echo(grpc::CallbackServerContext* context, const Number* request,
                                 Number* reply) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reply->set_value(request->value());
    const std::lock_guard lock(mutex_);
    waiting_.push_back({reactor, std::chrono::steady_clock::now()});
    changed_.notify_one();
    return reactor;
  }

 private:
  struct Request {
    grpc::ServerUnaryReactor* reactor;
    std::chrono::steady_clock::time_point arrived;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
      if (ended_) return;
      changed_.wait_until(lock, waiting_.front().arrived + max_delay,
                          [&] { return ended_ || waiting_.size() >= work_.max_batch; });
      std::vector<Request> batch;
      while (!waiting_.empty() && batch.size() < work_.max_batch) {
        batch.push_back(waiting_.front());
        waiting_.pop_front();
      }
      lock.unlock();
      run_model(batch.size());
      for (const Request& request : batch) request.reactor->Finish(grpc::Status::OK);
      lock.lock();
    }
  }

  const Work work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Request> waiting_;
  bool ended_ = false;
  std::thread thread_;
};

void serve(const Work& work, ServerEnd& end) {
  BatchingService service(work);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.RegisterService(&service);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  const auto server = builder.BuildAndStart();
  if (server == nullptr || port <= 0) throw std::runtime_error("gRPC cannot listen");
  end.announce("127.0.0.1:" + std::to_string(port));
  end.wait_for_client();
  _exit(0);  // shutdown is not measured
}

struct Call {
  Number request, reply;
  grpc::Status status;
  std::optional<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientAsyncResponseReader<Number>> reader;
  LoadMeter::Clock::time_point began;

  void begin(proto::Bench::Stub& stub, grpc::CompletionQueue& queue) {
    request.set_value(request.value() + 1);
    reader.reset();
    context.emplace();
    began = LoadMeter::Clock::now();
    reader = stub.AsyncEcho(&*context, request, &queue);
    reader->Finish(&reply, &status, this);
  }
};

void measure(const Work& work, ClientEnd& end) {
  const auto channel = grpc::CreateChannel(end.address(), grpc::InsecureChannelCredentials());
  const auto stub = proto::Bench::NewStub(channel);
  grpc::CompletionQueue queue;
  LoadMeter meter(end.budget());
  std::vector<std::unique_ptr<Call>> calls;
  for (std::size_t i = 0; i < work.in_flight; ++i)
    calls.emplace_back(std::make_unique<Call>())->begin(*stub, queue);
  void* tag = nullptr;
  bool ok = false, more = true;
  for (std::size_t left = work.in_flight; left != 0 && queue.Next(&tag, &ok);) {
    Call& call = *static_cast<Call*>(tag);
    if (!call.status.ok()) throw std::runtime_error("gRPC: " + call.status.error_message());
    expect_answer(call.reply.value() == call.request.value());
    more = more && meter.end(call.began);
    if (more) {
      call.begin(*stub, queue);
    } else {
      --left;
    }
  }
  end.report(meter.figures());
}

}  // namespace

Contender grpc_peer(const Work& work) {
  return contender("grpc", {},
                   {.serve = [=](ServerEnd& end) { serve(work, end); },
                    .measure = [=](ClientEnd& end) { measure(work, end); }});
}

}  // namespace weft::bench
