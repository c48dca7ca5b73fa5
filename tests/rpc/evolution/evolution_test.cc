// This version communicates with earlier versions. frames/VERSION has both sides of the conversation that
// record_main.cc recorded with that version. Types may evolve: fields and trailing parameters are added and
// removed.
#include <weft/rpc/endpoint/link.h>

#include <filesystem>
#include <fstream>

#include "tests/rpc/evolution/archive.h"
#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::evolution_test {
namespace {

using probe::Socket;
using recorded::Archive;
using namespace test;

std::vector<std::byte> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) throw std::runtime_error("no recording at " + path.string());
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}

std::vector<std::filesystem::path> recordings() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(WEFT_RECORDED_FRAMES))
    if (std::filesystem::exists(entry.path() / "client.frames")) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

std::string name_of(const testing::TestParamInfo<std::filesystem::path>& info) {
  std::string name = info.param.filename();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

class RecordedTest : public testing::TestWithParam<std::filesystem::path> {};
INSTANTIATE_TEST_SUITE_P(Versions, RecordedTest, testing::ValuesIn(recordings()), name_of);

void expect_same(const recorded::Order& found) {
  const recorded::Order order = recorded::order();
  EXPECT_EQ(found.symbol, order.symbol);
  EXPECT_EQ(found.price, order.price);
  EXPECT_EQ(found.sizes, order.sizes);
  EXPECT_EQ(found.note, order.note);
  EXPECT_EQ(found.flags, order.flags);
}
void expect_turned(const Buffer& turned) {
  const Buffer bytes = recorded::bytes();
  ASSERT_EQ(turned.size(), bytes.size());
  EXPECT_TRUE(std::equal(turned.bytes().begin(), turned.bytes().end(), bytes.bytes().rbegin()));
}

TEST_P(RecordedTest, TheRecordedClientIsServed) {
  Agent server({.name = "server", .listen = {"tcp://127.0.0.1:0"}});
  const auto archive = std::make_shared<Archive>();
  server.serve(archive);
  auto client = Socket::connected(server.addresses().front());
  ASSERT_TRUE(client.send(read(GetParam() / "client.frames")));
  const auto next = [&] {
    auto frame = client.next();
    if (!frame) throw std::runtime_error("the server has closed the connection");
    return std::make_unique<IncomingMessage>(std::move(*frame), Limits{});
  };
  EXPECT_EQ(next()->hello().name, "server");
  const auto reply = [&](std::uint64_t id) {
    auto message = next();
    EXPECT_EQ(message->prefix().kind, FrameKind::reply);
    EXPECT_EQ(message->prefix().call_id, id);
    return message;
  };
  EXPECT_EQ(Codec<std::int64_t>::decode(reply(1)->result()), (std::int64_t{1} << 40));
  expect_same(Codec<recorded::Order>::decode(reply(2)->result()));
  const auto third = reply(3);
  expect_turned(Codec<Buffer>::decode(third->result()));
  const auto failure = reply(4)->failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::failed_precondition);
  EXPECT_EQ(failure->message, "no reason");
  EXPECT_EQ(Codec<std::uint64_t>::decode(reply(6)->result()), 1U);
  EXPECT_EQ(archive->notes, std::vector<std::string>{"a line"});
}

TEST_P(RecordedTest, TheRecordedServerIsUnderstood) {
  Socket listener = Socket::listening();
  Agent client({.name = "client"});
  auto answers = recorded::call_all(client.connect(listener.address()));
  Socket server = listener.accept();
  const auto says = read(GetParam() / "server.frames");
  // Send the recorded Hello. Send the recorded replies once all requests have arrived.
  const Prefix hello = decode(std::span(says).first<Prefix::size>(), Limits{});
  const std::size_t end = Prefix::size + hello.header_words * std::size_t{8};
  ASSERT_TRUE(server.send(std::span(says).first(end)));
  for (std::size_t i = 0; i < 1 + recorded::answers + 1; ++i) ASSERT_TRUE(server.next());
  ASSERT_TRUE(server.send(std::span(says).subspan(end)));
  EXPECT_EQ(got(std::move(answers.add)), (std::int64_t{1} << 40));
  expect_same(got(std::move(answers.same)));
  expect_turned(got(std::move(answers.turn)));
  expect_error([&] { got(std::move(answers.fail)); }, ErrorKind::failed_precondition);
  EXPECT_EQ(got(std::move(answers.count)), 1U);
}

// --- Types ---

namespace before {
struct Quote {
  std::string symbol;
  double price = 0;
};
WEFT_CODEC(Quote, symbol, price)
struct Market {
  Quote last(Quote asked) { return {asked.symbol, asked.price + 1}; }
  using Service = rpc::Service<"evolving", Method<"last", &Market::last>>;
};
}  // namespace before

namespace after {  // one field and one parameter are added, and one field is removed
struct Quote {
  std::string symbol;
  std::string currency = "EUR";
};
WEFT_CODEC(Quote, symbol, currency)
struct Market {
  Quote last(Quote asked, std::optional<int> depth) {
    return {asked.symbol + std::to_string(depth.value_or(0)), asked.currency};
  }
  using Service = rpc::Service<"evolving", Method<"last", &Market::last>>;
};
}  // namespace after

TEST(EvolutionTest, AnOldCallerLeavesANewParameterAndANewFieldAtTheirDefaults) {
  test::Cluster cluster{{}, {"a", "b"}};
  cluster["b"].serve(std::make_shared<after::Market>());
  const auto quote = got(cluster.peer("a", "b").call<&before::Market::last>(before::Quote{"ACME", 5}));
  EXPECT_EQ(quote.symbol, "ACME0");
  EXPECT_EQ(quote.price, 0) << "a field that is gone has its default";
}

TEST(EvolutionTest, ANewCallerGetsAnErrorOfAnOldCalleeWithFewerParameters) {
  test::Cluster cluster{{}, {"a", "b"}};
  cluster["b"].serve(std::make_shared<before::Market>());
  expect_error(
      [&] { got(cluster.peer("a", "b").call<&after::Market::last>(after::Quote{"ACME", "USD"}, 3)); },
      ErrorKind::type_mismatch);
}

// --- Versions and features ---

HelloInfo hello_of(const std::string& name, std::uint16_t oldest, std::uint16_t newest,
                   std::uint64_t features = 0) {
  return {.version_min = oldest, .version_max = newest, .features = features, .name = name, .incarnation = 1};
}
std::optional<Error> farewell(Socket& from) {
  while (auto frame = from.next())
    if (frame->prefix.kind == FrameKind::goodbye) return IncomingMessage(*frame, Limits{}).goodbye();
  return std::nullopt;
}

TEST(EvolutionTest, APeerWithMoreVersionsIsServedInTheCommonOne) {
  Agent server(probe::over_tcp("server"));
  auto client = Socket::connected(server.addresses().front());
  ASSERT_TRUE(client.send(OutgoingMessage::hello(hello_of("newer", 1, 2, ~std::uint64_t{0})).head.bytes()));
  ASSERT_EQ(client.next()->prefix.kind, FrameKind::hello);
  ASSERT_TRUE(client.send(OutgoingMessage::resume({.session = 1, .epoch = 1, .is_new = true}).head.bytes()));
  auto chosen = client.next();
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->prefix.kind, FrameKind::resume);
  const auto ping = OutgoingMessage::request(0);
  ASSERT_TRUE(client.send(ping->seal_request({name_hash("weft.ping"), 0, 0}, 5, 0).head.bytes()));
  auto answer = client.next();
  while (answer && answer->prefix.kind == FrameKind::received) answer = client.next();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->prefix.kind, FrameKind::reply);
  EXPECT_EQ(answer->prefix.call_id, 5U);
  EXPECT_FALSE(IncomingMessage(*answer, Limits{}).failure());
  const auto links = server.core()->links().all();
  ASSERT_EQ(links.size(), 1U);
  EXPECT_EQ(links.front()->protocol(), (Protocol{1, own_protocol.features}))
      << "of features those that this build knows are in force";
}

TEST(EvolutionTest, APeerOfAnotherProtocolVersionIsRefusedWithAReason) {
  Agent server(probe::over_tcp("server"));
  auto client = Socket::connected(server.addresses().front());
  ASSERT_TRUE(client.send(OutgoingMessage::hello(hello_of("from the future", 9, 9)).head.bytes()));
  const auto reason = farewell(client);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->kind(), ErrorKind::unsupported);
  EXPECT_EQ(std::string(reason->what()),
            "no common protocol version: 'server' speaks 1, 'from the future' 9");
  EXPECT_FALSE(client.next().has_value());
}

TEST(EvolutionTest, AConnectToAPeerOfAnotherProtocolVersionFailsWithTheReason) {
  Socket listener = Socket::listening();
  Agent client(probe::over_tcp("client"));
  auto call = client.connect(listener.address()).call<&before::Market::last>(before::Quote{"ACME", 5});
  Socket server = listener.accept();
  ASSERT_TRUE(server.send(OutgoingMessage::hello(hello_of("server", 2, 4)).head.bytes()));
  expect_error([&] { got(std::move(call)); }, ErrorKind::unsupported, Execution::not_sent,
               "'client' speaks 1, 'server' 2 to 4");
  const auto reason = farewell(server);
  ASSERT_TRUE(reason) << "the peer also receives the reason";
  EXPECT_EQ(reason->kind(), ErrorKind::unsupported);
}

TEST(EvolutionTest, APeerThatIsRefusedForItsProtocolVersionReportsTheReason) {
  Socket listener = Socket::listening();
  Agent client(probe::over_tcp("client"));
  auto call = client.connect(listener.address()).call<&before::Market::last>(before::Quote{"ACME", 5});
  Socket server = listener.accept();
  ASSERT_TRUE(
      server.send(OutgoingMessage::goodbye(Error(ErrorKind::unsupported, "2 or nothing")).head.bytes()));
  expect_error([&] { got(std::move(call)); }, ErrorKind::unsupported, "2 or nothing");
}

}  // namespace
}  // namespace weft::rpc::evolution_test
