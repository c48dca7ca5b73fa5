// Cap'n Proto's RPC: two vats with promises, each on its own event loop in the main thread of its process.
// Tensors are Data, which the client lends to its message instead of copying. Processes of one host use a
// Unix socket.
#include "bench/rpc/work.h"

#include <capnp/rpc-twoparty.h>
#include <kj/async-io.h>
#include <unistd.h>

#include <cstring>

#include "bench/rpc/capnp_peer.capnp.h"

namespace weft::bench {
namespace {

using capnp::rpc::twoparty::Side;
using schema::Bench;

constexpr std::size_t small_message = 16;  // words

capnp::ReaderOptions reader_options() {  // no limit on the size of a message
  capnp::ReaderOptions options;
  options.traversalLimitInWords = std::uint64_t{1} << 60;
  return options;
}

class Server final : public schema::Bench::Server {
  kj::Promise<void> echo(EchoContext context) override {
    const std::int64_t value = context.getParams().getValue();
    context.getResults(capnp::MessageSize{small_message, 0}).setValue(value);
    return kj::READY_NOW;
  }
  kj::Promise<void> take(TakeContext context) override {
    const auto size = static_cast<std::int64_t>(context.getParams().getData().size());
    context.getResults(capnp::MessageSize{small_message, 0}).setSize(size);
    return kj::READY_NOW;
  }
  kj::Promise<void> echoData(EchoDataContext context) override {
    const auto data = context.getParams().getData();
    context.getResults(capnp::MessageSize{data.size() / sizeof(capnp::word) + small_message, 0})
        .setData(data);
    return kj::READY_NOW;
  }
};

void serve(const Work& work, ServerEnd& end) {
  const bool tcp = work.wire == Wire::tcp;
  const std::string path = scratch_path(".sock");
  auto io = kj::setupAsyncIo();
  auto address = io.provider->getNetwork()
                     .parseAddress(tcp ? std::string("127.0.0.1:0").c_str() : ("unix:" + path).c_str())
                     .wait(io.waitScope);
  auto listener = address->listen();
  end.announce(tcp ? "127.0.0.1:" + std::to_string(listener->getPort()) : "unix:" + path);
  auto stream = listener->accept().wait(io.waitScope);
  if (!tcp) unlink(path.c_str());
  capnp::TwoPartyVatNetwork network(*stream, Side::SERVER, reader_options());
  auto system = capnp::makeRpcServer(network, kj::heap<Server>());
  network.onDisconnect().wait(io.waitScope);
  end.wait_for_client();
}

class Client {
 public:
  Client(Bench::Client bench, kj::WaitScope& scope, const Work& work, const Budget& budget)
      : bench_(bench),
        scope_(scope),
        work_(work),
        latency_(budget),
        rate_(budget),
        // Words, because a message can refer only to whole words.
        tensor_(kj::heapArray<capnp::word>(bytes() / sizeof(capnp::word))) {
    std::memset(tensor_.asBytes().begin(), 1, tensor_.asBytes().size());
  }

  Figures run() {
    switch (work_.kind) {
      case Kind::throughput:
        call_many();
        return rate_.calls();
      case Kind::bulk:
        do take();
        while (rate_.count(1));
        return rate_.bandwidth(work_.bytes);
      case Kind::small_tensor:
      case Kind::echo:
        return one_by_one([this] { echo_data(); });
      default:
        return one_by_one([this] { call().wait(scope_); });
    }
  }

 private:
  std::size_t bytes() const {
    return work_.kind == Kind::small_tensor ? small_elements * sizeof(float) : work_.bytes;
  }

  template <class Call>
  Figures one_by_one(Call one) {
    do {
      latency_.begin();
      one();
    } while (latency_.end());
    return latency_.figures();
  }

  kj::Promise<void> call() {
    auto request = bench_.echoRequest(capnp::MessageSize{small_message, 0});
    request.setValue(++number_);
    return request.send().then([number = number_](capnp::Response<Bench::EchoResults>&& response) {
      expect_answer(response.getValue() == number);
    });
  }
  kj::Promise<void> call_until_enough() {
    return call().then([this]() -> kj::Promise<void> {
      if (!enough_) enough_ = !rate_.count(1);
      if (enough_) return kj::READY_NOW;
      return call_until_enough();
    });
  }
  void call_many() {
    kj::Vector<kj::Promise<void>> callers;
    for (std::size_t i = 0; i < in_flight; ++i) callers.add(call_until_enough());
    kj::joinPromises(callers.releaseAsArray()).wait(scope_);
  }

  template <class Request>
  void lend_tensor(Request& request) {
    auto orphanage = capnp::Orphanage::getForMessageContaining(typename Request::Builds::Builder(request));
    request.adoptData(orphanage.referenceExternalData(tensor_.asBytes()));
  }
  void take() {
    auto request = bench_.takeRequest(capnp::MessageSize{small_message, 0});
    lend_tensor(request);
    const auto response = request.send().wait(scope_);
    expect_answer(response.getSize() == static_cast<std::int64_t>(tensor_.asBytes().size()));
  }
  void echo_data() {
    auto request = bench_.echoDataRequest(capnp::MessageSize{small_message, 0});
    lend_tensor(request);
    const auto response = request.send().wait(scope_);
    const auto data = response.getData();
    expect_answer(data.size() == tensor_.asBytes().size() && data[data.size() - 1] == 1);
  }

  Bench::Client bench_;
  kj::WaitScope& scope_;
  const Work& work_;
  LatencyMeter latency_;
  RateMeter rate_;
  kj::Array<capnp::word> tensor_;
  std::int64_t number_ = 0;
  bool enough_ = false;
};

void measure(const Work& work, ClientEnd& end) {
  auto io = kj::setupAsyncIo();
  auto address = io.provider->getNetwork().parseAddress(end.address().c_str()).wait(io.waitScope);
  auto stream = address->connect().wait(io.waitScope);
  capnp::TwoPartyVatNetwork network(*stream, Side::CLIENT, reader_options());
  auto system = capnp::makeRpcClient(network);
  capnp::MallocMessageBuilder message(8);
  auto server = message.initRoot<capnp::rpc::twoparty::VatId>();
  server.setSide(Side::SERVER);
  Client client(system.bootstrap(server).castAs<Bench>(), io.waitScope, work, end.budget());
  end.report(client.run());
}

// Rethrows exceptions of Cap'n Proto with their description only. Their full text ends with a line of
// addresses.
template <class Body>
void with_reasons(Body body) {
  try {
    body();
  } catch (const kj::Exception& error) {
    throw std::runtime_error(std::string("Cap'n Proto: ") + error.getDescription().cStr());
  }
}

}  // namespace

std::optional<Contender> capnp_peer(const Work& work) {
  if (!is_plain(work.kind) || work.wire == Wire::shared_memory) return std::nullopt;
  // This peer cannot spin. In the cases of one host, it is compared with peers that spin.
  if (work.wait == Wait::spinning && work.wire != Wire::same_host) return std::nullopt;
  return contender("capnp", notes_of(Wait::blocking, "promises on main's loop"),
                   {.serve = [=](ServerEnd& end) { with_reasons([&] { serve(work, end); }); },
                    .measure = [=](ClientEnd& end) { with_reasons([&] { measure(work, end); }); }});
}

}  // namespace weft::bench
