// The agent that tests of the program `weft` ask: a method for every kind of type, and for every way to end.
//
//   weft_test_agent [--traced] [--gauges] ADDRESS...      says "listens at ADDRESS" for each; ends on SIGTERM
#include <weft/rpc/agent/stats.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/trace/tracer.h>

#include <signal.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

using namespace weft;
using namespace std::chrono_literals;

enum class Color : std::int16_t { red = -1, green = 7 };

struct Point {
  double x = 0, y = 0;
};
WEFT_CODEC(Point, x, y)

struct Order {
  std::string symbol = "NONE";
  std::uint64_t id = 0;
  std::vector<Point> path;
  std::map<std::string, std::optional<float>> notes;
  Color color = Color::green;
};
WEFT_CODEC(Order, symbol, id, path, notes, color)

struct Tree {
  int value = 0;
  std::vector<Tree> children;
};
WEFT_CODEC(Tree, value, children)

// A tensor of which this agent knows only the record, because it is built without LibTorch.
struct Tensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  rpc::Buffer data;
};
template <>
struct rpc::Codec<Tensor> {
  static void describe(TypeText& text) { text << "tensor"; }
  static void encode(ValueWriter writer, const Tensor& tensor) {
    RecordWriter record = writer.set_record(3);
    record.field(0, "dtype").set_text(tensor.dtype);
    record.field(1, "shape").set_ints(tensor.shape);
    Codec<Buffer>::encode(record.field(2, "data"), tensor.data);
  }
  static Tensor decode(ValueReader reader) {
    ValueReader dtype, shape, data;
    if (!reader.find_field("dtype", 0, dtype) || !reader.find_field("shape", 1, shape) ||
        !reader.find_field("data", 2, data))
      reader.mismatch("a tensor");
    return {std::string(dtype.get_text()), Codec<std::vector<std::int64_t>>::decode(shape),
            Codec<Buffer>::decode(data)};
  }
};

struct Echo {
  bool boolean(bool value) { return value; }
  std::int8_t small(std::int8_t value) { return value; }
  std::uint64_t large(std::uint64_t value) { return value; }
  double real(double value) { return value; }
  float single(float value) { return value; }
  std::string text(std::string value) { return value; }
  std::vector<std::byte> bytes(std::vector<std::byte> value) { return value; }
  std::vector<double> reals(std::vector<double> value) { return value; }
  std::map<std::int32_t, std::string> map(std::map<std::int32_t, std::string> value) { return value; }
  std::optional<std::int32_t> optional(std::optional<std::int32_t> value) { return value; }
  std::tuple<int, std::string, bool> tuple(int a, std::string b, bool c) { return {a, b, c}; }
  std::variant<std::int64_t, double, std::string> variant(
      std::variant<std::int64_t, double, std::string> value) {
    return value;
  }
  Order order(Order value) { return value; }
  Tree tree(Tree value) { return value; }
  Tensor tensor(Tensor value) { return value; }
  void nothing() {}
  using Service = rpc::Service<"echo", rpc::Method<"boolean", &Echo::boolean>,
                               rpc::Method<"small", &Echo::small>, rpc::Method<"large", &Echo::large>,
                               rpc::Method<"real", &Echo::real>, rpc::Method<"single", &Echo::single>,
                               rpc::Method<"text", &Echo::text>, rpc::Method<"bytes", &Echo::bytes>,
                               rpc::Method<"reals", &Echo::reals>, rpc::Method<"map", &Echo::map>,
                               rpc::Method<"optional", &Echo::optional>, rpc::Method<"tuple", &Echo::tuple>,
                               rpc::Method<"variant", &Echo::variant>, rpc::Method<"order", &Echo::order>,
                               rpc::Method<"tree", &Echo::tree>, rpc::Method<"tensor", &Echo::tensor>,
                               rpc::Method<"nothing", &Echo::nothing, rpc::idempotent>>;
};

class Ends {
 public:
  void refuse(std::string why) { throw rpc::Error(rpc::ErrorKind::permission_denied, why); }
  void crash() { throw std::out_of_range("beyond the end"); }
  rpc::Future<void> hang() {
    std::puts("hanging");
    std::lock_guard lock(mutex_);
    return hanging_.emplace_back().future();
  }
  void told(std::string what) { std::printf("told %s\n", what.c_str()); }
  void die() { std::_Exit(7); }
  void drain() {
    std::thread([this] { (void)agent->drain(1h).then([](auto&&) {}); }).detach();
  }
  using Service =
      rpc::Service<"ends", rpc::Method<"refuse", &Ends::refuse>, rpc::Method<"crash", &Ends::crash>,
                   rpc::Method<"hang", &Ends::hang>, rpc::Method<"told", &Ends::told>,
                   rpc::Method<"die", &Ends::die>, rpc::Method<"drain", &Ends::drain>>;
  rpc::Agent* agent = nullptr;

 private:
  std::mutex mutex_;  // guards hanging_
  std::vector<rpc::Promise<void>> hanging_;
};

struct Flow {
  rpc::Stream<Point> line(int points) {
    for (int i = 0; i < points; ++i) {
      Point point{0.5 * i, 1};
      co_yield std::move(point);
    }
  }
  rpc::Stream<int> broken() {
    co_yield 1;
    throw rpc::Error(rpc::ErrorKind::unavailable, "the pipe broke");
  }
  rpc::Stream<int> endless() {
    for (int i = 0;; ++i) co_yield int{i};
  }
  std::string metadata(rpc::CallContext& call, std::string key) {
    return call.metadata(key).value_or("none");
  }
  using Service =
      rpc::Service<"flow", rpc::Method<"line", &Flow::line>, rpc::Method<"broken", &Flow::broken>,
                   rpc::Method<"endless", &Flow::endless>, rpc::Method<"metadata", &Flow::metadata>>;
};

struct Created {
  int value() { return 1; }
  using Service =
      rpc::Service<"created", rpc::Constructor<std::string>, rpc::Method<"value", &Created::value>>;
  explicit Created(std::string) {}
};

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  sigset_t end;  // before any thread starts, because threads inherit it
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);
  auto ends = std::make_shared<Ends>();
  std::vector<std::string> addresses(argv + 1, argv + argc);
  rpc::Layers layers;
  if (std::erase(addresses, "--traced") != 0) layers.push_back(std::make_shared<rpc::Tracer>()->layer());
  if (std::erase(addresses, "--gauges") != 0) {
    auto gauges = std::make_shared<rpc::Gauges>();
    gauges->set("loss", 0.5);
    gauges->set("<b>odd</b>", 1);
    layers.push_back(gauges->layer());
  }
  rpc::Agent agent{{.name = "tested\x1b[1m", .listen = addresses, .log = [](const rpc::LogRecord&) {}},
                   layers};
  ends->agent = &agent;
  agent.serve(std::make_shared<Echo>());
  agent.serve(ends);
  agent.serve(std::make_shared<Flow>());
  agent.allow_create<Created>();
  for (const std::string& address : agent.addresses()) std::printf("listens at %s\n", address.c_str());
  int number = 0;
  sigwait(&end, &number);
  return 0;
}
