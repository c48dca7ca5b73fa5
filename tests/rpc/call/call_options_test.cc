// Options and metadata of calls: the options that handles accumulate, and the metadata that the callee gets.
#include <weft/rpc/call/interceptor.h>
#include <weft/rpc/endpoint/dynamic_call.h>

#include "tests/support/cluster.h"

namespace weft::rpc::call_options_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

// --- Merging ---

struct Field {
  std::string name;
  std::function<void(CallOptions& to, const CallOptions& from)> copy;
};

const std::vector<Field>& fields() {
  static const std::vector<Field> all{
      {"timeout", [](auto& to, const auto& from) { to.timeout = from.timeout; }},
      {"retry", [](auto& to, const auto& from) { to.retry = from.retry; }},
      {"idempotent", [](auto& to, const auto& from) { to.idempotent = from.idempotent; }},
      {"wait_for_ready", [](auto& to, const auto& from) { to.wait_for_ready = from.wait_for_ready; }},
      {"connect_within", [](auto& to, const auto& from) { to.connect_within = from.connect_within; }}};
  return all;
}

std::string text_of(const CallOptions& options) {
  std::string text;
  if (options.timeout) text += " deadline=" + std::to_string(options.timeout->count());
  if (options.retry) text += " retry=" + std::to_string(options.retry->attempts);
  if (options.idempotent) text += " idempotent=" + std::to_string(*options.idempotent);
  if (options.wait_for_ready) text += " wait_for_ready=" + std::to_string(*options.wait_for_ready);
  if (options.connect_within) text += " connect_within=" + std::to_string(options.connect_within->count());
  return text;
}

const CallOptions some{.timeout = 1h,
                       .retry = RetryPolicy{.attempts = 7},
                       .idempotent = true,
                       .wait_for_ready = true,
                       .connect_within = 3s};
const CallOptions others{.timeout = 2h,
                         .retry = RetryPolicy{.attempts = 8},
                         .idempotent = false,
                         .wait_for_ready = false,
                         .connect_within = 4s};

TEST(CallOptions, EachFieldStaysUnlessALaterOneSetsIt) {
  for (const Field& field : fields()) {
    SCOPED_TRACE(field.name);
    CallOptions only;  // this field alone
    field.copy(only, some);
    CallOptions rest = some;  // all but this field
    field.copy(rest, CallOptions{});

    CallOptions kept = only;
    kept.merge(CallOptions{});
    EXPECT_EQ(text_of(kept), text_of(only));
    kept.merge(rest);
    EXPECT_EQ(text_of(kept), text_of(some));

    CallOptions replaced = some, expected = some;
    CallOptions later;
    field.copy(later, others);
    field.copy(expected, others);
    replaced.merge(later);
    EXPECT_EQ(text_of(replaced), text_of(expected));
  }
}

// Records the options with which a call is made.
class Spy final : public Interceptor {
 public:
  std::unique_ptr<CallWatch> calling(OutgoingCall& call, const std::string&, CallContext*) override {
    seen.give({.timeout = call.deadline ? std::optional(*call.deadline - Clock::now()) : std::nullopt,
               .retry = call.retry != nullptr ? std::optional(*call.retry) : std::nullopt,
               .idempotent = call.idempotent,
               .wait_for_ready = call.wait_for_ready,
               .connect_within = call.connect_within});
    if (!tenant.empty()) call.set_metadata("tenant", tenant);
    return nullptr;
  }
  Handover<CallOptions> seen;
  std::string tenant;
};

// Refuses the first attempt of a call before its handler begins.
class Turnstile final : public Interceptor {
 public:
  Task<void> accept(CallContext& call) override {
    if (closed && call.attempt() == 0) throw Error(ErrorKind::resource_exhausted, "the second attempt only");
    co_return;
  }
  std::atomic<bool> closed{false};
};

// A handler's view of its call's metadata: "tenant/user".
std::string view(CallContext& call) {
  return call.metadata("tenant").value_or("-") + "/" + call.metadata("user").value_or("-");
}

struct Desk {
  std::string read(CallContext& call) { return view(call) + "@" + std::to_string(call.attempt()); }
  void note(CallContext& call) { noted.give(view(call)); }
  std::optional<std::string> value(CallContext& call, std::string key) { return call.metadata(key); }
  Stream<std::string> repeat(CallContext& call, std::int64_t times) {
    for (std::int64_t i = 0; i < times; ++i) co_yield view(call);
  }
  Task<std::string> count(CallContext& call, Stream<std::int64_t> numbers) {
    std::int64_t sum = 0;
    while (auto number = co_await numbers.next()) sum += *number;
    co_return view(call) + "=" + std::to_string(sum);
  }
  using Service = rpc::Service<"desk", Method<"read", &Desk::read>, Method<"note", &Desk::note>,
                               Method<"value", &Desk::value>, Method<"repeat", &Desk::repeat>,
                               Method<"count", &Desk::count>>;
  Handover<std::string> noted;
};

class CallOptionsTest : public testing::Test {
 protected:
  CallOptionsTest() {
    cluster.add("server").serve(desk);
    cluster.add("client");
    peer.emplace(cluster.peer("client", "server"));
  }
  CallOptions made_with(const Peer& handle) {
    got(handle.call<&Desk::value>("tenant"));
    return spy->seen.take();
  }

  std::shared_ptr<Desk> desk = std::make_shared<Desk>();
  std::shared_ptr<Spy> spy = std::make_shared<Spy>();
  std::shared_ptr<Turnstile> turnstile = std::make_shared<Turnstile>();
  Cluster cluster{{.adjust = [this](AgentOptions& options) {
    if (options.name == "client") options.interceptors = {spy};
    if (options.name != "server") return;
    options.interceptors = {turnstile};
    options.limits.header = 1 << 16;
  }}};
  std::optional<Peer> peer;
};

TEST_F(CallOptionsTest, AHandleInheritsTheOptionsOfItsPredecessors) {
  Peer all = *peer;
  for (const Field& field : fields()) {
    CallOptions one;
    field.copy(one, some);
    all = all.with(one);
  }
  const CallOptions used = made_with(all);
  ASSERT_TRUE(used.timeout && used.retry && used.connect_within);
  EXPECT_GT(*used.timeout, 50min);
  EXPECT_LE(*used.timeout, 1h);
  EXPECT_EQ(used.retry->attempts, 7);
  EXPECT_EQ(used.idempotent, true);
  EXPECT_EQ(used.wait_for_ready, true);
  EXPECT_EQ(used.connect_within, 3s);

  const CallOptions undone = made_with(all.with({.idempotent = false, .wait_for_ready = false}));
  EXPECT_EQ(undone.idempotent, false);
  EXPECT_EQ(undone.wait_for_ready, false);
  EXPECT_TRUE(undone.timeout && undone.retry && undone.connect_within);
  EXPECT_FALSE(made_with(*peer).retry) << "the handle that all were made of is as it was";
}

TEST_F(CallOptionsTest, NoTimeoutStaysAndReplacesATimeout) {
  EXPECT_FALSE(made_with(peer->with({.timeout = 1h}).with({.timeout = no_timeout})).timeout);
  EXPECT_FALSE(made_with(peer->with({.timeout = no_timeout}).with({.idempotent = true})).timeout);
}

// --- Metadata ---

const Metadata acme{{"tenant", "acme, whose name is longer than a string keeps inside itself"}};
const std::string acme_name = acme.at("tenant");
const Metadata anna{{"user", "anna, whose name is longer than a string keeps inside itself, too"}};
const std::string both_names = acme_name + "/" + anna.at("user");

TEST_F(CallOptionsTest, HandlesMergeTheirMetadataAndTheLastValueOfAKeyApplies) {
  EXPECT_EQ(got(peer->call<&Desk::read>()), "-/-@0");
  EXPECT_EQ(got(peer->with_metadata({{"tenant", "a"}}).call<&Desk::read>()), "a/-@0");
  const Peer both =
      peer->with_metadata({{"tenant", "a"}}).with({.timeout = 1min}).with_metadata({{"user", "u"}});
  EXPECT_EQ(got(both.call<&Desk::read>()), "a/u@0");
  EXPECT_EQ(got(both.with_metadata({{"tenant", "b"}}).call<&Desk::read>()), "b/u@0");
  EXPECT_EQ(got(both.call<&Desk::read>()), "a/u@0") << "each handle has its own";
}

TEST_F(CallOptionsTest, NotificationsCarryMetadata) {
  peer->with_metadata(acme).with_metadata(anna).notify<&Desk::note>();
  EXPECT_EQ(desk->noted.take(), both_names);
}

TEST_F(CallOptionsTest, CallsWithStreamsCarryMetadata) {
  const Peer both = peer->with_metadata(acme).with_metadata(anna);
  auto answers = got(both.call<&Desk::repeat>(3));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(got(answers.next()), both_names);
  EXPECT_EQ(got(answers.next()), std::nullopt);

  auto [writer, numbers] = make_channel<std::int64_t>(4);
  auto sum = both.call<&Desk::count>(std::move(numbers));
  for (const std::int64_t number : {3, 4}) got(writer.write(number));
  writer.close();
  EXPECT_EQ(got(std::move(sum)), both_names + "=7");
}

TEST_F(CallOptionsTest, DynamicCallsCarryMetadata) {
  const auto reply =
      got(call_by_name(peer->with_metadata(acme).with_metadata(anna), "desk.read", 0, nullptr));
  EXPECT_EQ(reply.result().get_text(), both_names + "@0");
}

TEST_F(CallOptionsTest, EveryAttemptCarriesMetadata) {
  turnstile->closed = true;
  const Peer again = peer->with({.retry = RetryPolicy{.attempts = 2, .first_wait = 1ms}})
                         .with_metadata(acme)
                         .with_metadata(anna);
  EXPECT_EQ(got(again.call<&Desk::read>()), both_names + "@1");
}

TEST_F(CallOptionsTest, CallsOfAPeerSetCarryMetadataAndMergedOptions) {
  const auto set = PeerSet(cluster["client"], {"inproc://server"})
                       .with({.timeout = 1h})
                       .with_metadata(acme)
                       .with({.idempotent = true})
                       .with_metadata(anna);
  EXPECT_EQ(got(set.call<&Desk::read>()), both_names + "@0");
  const CallOptions used = spy->seen.take();
  EXPECT_EQ(used.idempotent, true);
  ASSERT_TRUE(used.timeout);
  EXPECT_GT(*used.timeout, 50min);
}

TEST_F(CallOptionsTest, AnInterceptorReplacesMetadataOfTheHandle) {
  spy->tenant = "of the interceptor";
  EXPECT_EQ(got(peer->with_metadata({{"tenant", "a"}, {"user", "u"}}).call<&Desk::read>()),
            "of the interceptor/u@0");
}

// g++ 12 destroys twice what braces make within a co_await expression: options in braces have no destructor.
Task<std::string> read_in_a_task(Peer peer) {
  co_return co_await peer.with({.timeout = 1min})
      .with_metadata(acme)
      .with({.idempotent = true})
      .call<&Desk::read>();
}
TEST_F(CallOptionsTest, HandlesMayBeMadeWithinACoAwaitExpression) {
  EXPECT_EQ(got(read_in_a_task(*peer).start(cluster["client"].core()->handlers())), acme_name + "/-@0");
}

TEST_F(CallOptionsTest, MetadataIsAnyText) {
  const std::string bytes("\0\xff\n", 3);
  EXPECT_EQ(got(peer->with_metadata({{"", bytes}}).call<&Desk::value>("")), bytes);
  EXPECT_EQ(got(peer->with_metadata({{bytes, ""}}).call<&Desk::value>(bytes)), "");
}

TEST_F(CallOptionsTest, MetadataBeyondThePeersLimitFailsTheCallAlone) {
  const Peer large = peer->with_metadata({{"tenant", std::string(1 << 16, 'x')}});
  expect_error([&] { got(large.call<&Desk::read>()); }, ErrorKind::resource_exhausted, Execution::not_sent);
  EXPECT_EQ(got(peer->call<&Desk::read>()), "-/-@0") << "the connection lives";
}

}  // namespace
}  // namespace weft::rpc::call_options_test
