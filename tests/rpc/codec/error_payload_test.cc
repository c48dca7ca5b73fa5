#include <weft/rpc/codec/error_payload.h>

#include <random>

#include "tests/support/cluster.h"

namespace weft::rpc::error_payload_test {
namespace {

using namespace test;

struct Quota {
  std::string resource;
  std::int64_t limit = 0;
};
WEFT_CODEC(Quota, resource, limit)

namespace newer {  // the same struct in a program of another version
struct Quota {
  std::int64_t limit = 0;
  double used = 0.5;
};
WEFT_CODEC(Quota, limit, used)
}  // namespace newer
namespace foreign {  // another struct of that name
struct Quota {
  std::vector<std::string> limit;
};
WEFT_CODEC(Quota, limit)
}  // namespace foreign

struct Row {
  std::int64_t number = 0;
};
WEFT_CODEC(Row, number)

const Error bare(ErrorKind::resource_exhausted, "quota");

TEST(ErrorPayload, IsReturnedOnlyAsItsOwnType) {
  const Error error = with_payload(bare, Quota{"rows", 100});
  EXPECT_EQ(error.kind(), ErrorKind::resource_exhausted);
  EXPECT_STREQ(error.what(), "quota");
  const auto quota = payload<Quota>(error);
  ASSERT_TRUE(quota);
  EXPECT_EQ(quota->resource, "rows");
  EXPECT_EQ(quota->limit, 100);
  EXPECT_FALSE(payload<Row>(error));
  EXPECT_FALSE(payload<std::string>(error));
  EXPECT_FALSE(payload<std::vector<Quota>>(error));
  EXPECT_FALSE(payload<Quota>(bare));
  const Error replaced = with_payload(error, Row{5});
  EXPECT_FALSE(payload<Quota>(replaced));
  EXPECT_EQ(payload<Row>(replaced)->number, 5);
}

TEST(ErrorPayload, IsAnyTransferableValue) {
  EXPECT_EQ(payload<std::string>(with_payload(bare, std::string("text"))), "text");
  EXPECT_EQ(payload<std::int32_t>(with_payload(bare, std::int32_t{-3})), -3);
  using Rows = std::map<std::string, std::vector<Row>>;
  const auto rows = payload<Rows>(with_payload(bare, Rows{{"a", {{1}, {2}}}}));
  ASSERT_TRUE(rows);
  EXPECT_EQ(rows->at("a").at(1).number, 2);
  const Buffer bytes = Buffer::allocate(5000);  // as an argument it would be an attachment
  std::fill_n(bytes.data(), bytes.size(), std::byte{7});
  const auto same = payload<Buffer>(with_payload(bare, bytes));
  ASSERT_TRUE(same);
  EXPECT_EQ(same->size(), 5000U);
  EXPECT_EQ(same->data()[4999], std::byte{7});
}

TEST(ErrorPayload, StructsEvolveByTheirFields) {
  const Error error = with_payload(bare, Quota{"rows", 100});
  const auto quota = payload<newer::Quota>(error);
  ASSERT_TRUE(quota);
  EXPECT_EQ(quota->limit, 100);
  EXPECT_EQ(quota->used, 0.5) << "the default of a field that did not travel";
  EXPECT_FALSE(payload<foreign::Quota>(error)) << "its field is of another type";
}

TEST(ErrorPayload, APayloadBeyondTheLimitIsRefusedWithTheErrorsText) {
  const std::string large(max_error_payload, 'x');
  expect_error([&]() -> Error { return with_payload(bare, Quota{large, 1}); }, ErrorKind::resource_exhausted,
               "the error was: quota");
  EXPECT_TRUE(payload<Quota>(with_payload(bare, Quota{large.substr(0, max_error_payload - 1000), 1})));
}

TEST(ErrorPayload, MalformedBytesAreRefused) {
  const Error good = with_payload(bare, Quota{"rows", 100});
  std::mt19937 random(7);
  std::size_t refused = 0;
  for (int i = 0; i < 2000; ++i) {
    ErrorPayload bad = *good.payload();
    const std::size_t at = random() % bad.bytes.size();
    if (i % 3 == 0) {
      bad.bytes.resize(at);
    } else {
      bad.bytes[at] = static_cast<char>(random());
    }
    Error error = bare;
    error.set_payload(std::make_shared<const ErrorPayload>(std::move(bad)));
    if (!payload<Quota>(error)) ++refused;
  }
  EXPECT_GT(refused, 1000U);
}

// --- Calls ---

struct Bank {
  void pay(std::int64_t amount) {
    if (amount > 100) throw with_payload(bare, Quota{"payments", 100});
    throw Error(ErrorKind::invalid_argument, "nothing to pay");
  }
  Task<void> pay_later(std::int64_t amount) {
    co_await Future<void>::made(Result<void>{});
    pay(amount);
  }
  // Fails with the error of the other bank.
  Task<void> pay_by(CallContext& call, std::string bank, std::int64_t amount) {
    auto core = AgentCore::of(call);
    co_await Peer(core, core->routes().to_name(bank)).with(call).call<&Bank::pay>(amount);
  }
  // Answers with its own error.
  Task<void> pay_instead(CallContext& call, std::string bank, std::int64_t amount) {
    auto core = AgentCore::of(call);
    auto paid =
        co_await Peer(core, core->routes().to_name(bank)).with(call).call<&Bank::pay>(amount).as_result();
    if (!paid.ok()) throw with_payload(Error(ErrorKind::aborted, "the other bank"), Row{7});
  }
  Stream<std::int64_t> payments(std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) co_yield i;
    throw with_payload(bare, Quota{"items", count});
  }
  void large() { throw with_payload(bare, Quota{std::string(60'000, 'x'), 1}); }
  using Service = rpc::Service<"bank", Method<"pay", &Bank::pay>, Method<"pay_later", &Bank::pay_later>,
                               Method<"pay_by", &Bank::pay_by>, Method<"pay_instead", &Bank::pay_instead>,
                               Method<"payments", &Bank::payments>, Method<"large", &Bank::large>>;
};

class ErrorPayloadTest : public testing::Test {
 protected:
  ErrorPayloadTest() {
    for (const char* name : {"a", "b", "c"}) cluster.add(name).serve(std::make_shared<Bank>());
    cluster.peer("b", "c");
  }
  Peer to_b() { return cluster.peer("a", "b"); }

  template <class T>
  static std::optional<RemoteError> remote_error(Future<T> future) {
    try {
      got(std::move(future));
    } catch (const RemoteError& error) {
      return error;
    }
    ADD_FAILURE() << "no RemoteError";
    return std::nullopt;
  }
  Cluster cluster{{.adjust = [](AgentOptions& options) {
    if (options.name == "a") options.limits.header = 20'000;
  }}};
};

TEST_F(ErrorPayloadTest, TheCallerGetsThePayloadThatTheHandlerThrew) {
  for (int asynchronous : {0, 1}) {
    const auto error =
        remote_error(asynchronous != 0 ? to_b().call<&Bank::pay_later>(200) : to_b().call<&Bank::pay>(200));
    EXPECT_EQ(error->kind(), ErrorKind::resource_exhausted);
    EXPECT_EQ(error->detail(), "quota");
    const auto quota = payload<Quota>(*error);
    ASSERT_TRUE(quota);
    EXPECT_EQ(quota->resource, "payments");
    EXPECT_EQ(quota->limit, 100);
    EXPECT_FALSE(payload<Row>(*error));
  }
  EXPECT_EQ(remote_error(to_b().call<&Bank::pay>(0))->payload(), nullptr);
  const auto retried = remote_error(to_b().with({.retry = RetryPolicy{}}).call<&Bank::pay>(200));
  EXPECT_TRUE(payload<Quota>(*retried));
}

TEST_F(ErrorPayloadTest, PassesThroughNestedCalls) {
  const auto error = remote_error(to_b().call<&Bank::pay_by>("c", 200));
  EXPECT_EQ(error->worker(), "b");
  const auto quota = payload<Quota>(*error);
  ASSERT_TRUE(quota);
  EXPECT_EQ(quota->resource, "payments");

  const auto own = remote_error(to_b().call<&Bank::pay_instead>("c", 200));
  EXPECT_EQ(own->kind(), ErrorKind::aborted);
  EXPECT_FALSE(payload<Quota>(*own));
  ASSERT_TRUE(payload<Row>(*own));
  EXPECT_EQ(payload<Row>(*own)->number, 7);
}

TEST_F(ErrorPayloadTest, AStreamMayEndWithAPayload) {
  auto payments = got(to_b().call<&Bank::payments>(2));
  for (std::int64_t i = 0; i < 2; ++i) EXPECT_EQ(got(payments.next()), i);
  const auto error = remote_error(payments.next());
  const auto quota = payload<Quota>(*error);
  ASSERT_TRUE(quota);
  EXPECT_EQ(quota->resource, "items");
  EXPECT_EQ(quota->limit, 2);
}

// A caller that accepts only small headers gets the error without its payload, and keeps its connection.
TEST_F(ErrorPayloadTest, IsOmittedIfItExceedsTheCallersLimits) {
  const auto error = remote_error(to_b().call<&Bank::large>());
  EXPECT_EQ(error->kind(), ErrorKind::resource_exhausted);
  EXPECT_EQ(error->detail(), "quota");
  EXPECT_EQ(error->payload(), nullptr);
  EXPECT_TRUE(payload<Quota>(*remote_error(to_b().call<&Bank::pay>(200)))) << "the connection lives";
  EXPECT_TRUE(payload<Quota>(*remote_error(cluster.peer("c", "b").call<&Bank::large>())))
      << "others have the room";
}

}  // namespace
}  // namespace weft::rpc::error_payload_test
