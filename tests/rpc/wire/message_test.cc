#include <weft/rpc/wire/message.h>

#include <weft/rpc/wire/message.capnp.h>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/io.h>

#include <cstring>

#include "tests/support/errors.h"
#include "tests/support/messages.h"

namespace weft::rpc::message_test {
namespace {

using namespace test;

// --- Round trips ---

TEST(Message, HelloRoundTrip) {
  const HelloInfo info{2, 5, 0x11, "worker1", 0xfedcba9876543210, {"tcp://127.0.0.1:1", "unix:///a"}, 3,
                       4, 5, 6,    7};
  const auto message = received(OutgoingMessage::hello(info));
  EXPECT_EQ(message->prefix().kind, FrameKind::hello);
  const HelloInfo again = message->hello();
  EXPECT_EQ(again.version_min, 2);
  EXPECT_EQ(again.version_max, 5);
  EXPECT_EQ(again.features, 0x11U);
  EXPECT_EQ(again.name, "worker1");
  EXPECT_EQ(again.incarnation, 0xfedcba9876543210U);
  EXPECT_EQ(again.addresses, info.addresses);
  EXPECT_EQ(again.max_calls, 3U);
  EXPECT_EQ(again.max_bytes, 4U);
  EXPECT_EQ(again.max_header, 5U);
  EXPECT_EQ(again.max_body, 6U);
  EXPECT_EQ(again.max_attachments, 7U);
}

TEST(Message, HelloAndGoodbyeNeverExceedTheirLimit) {
  const HelloInfo info{1, 1, 0, "many", 7, std::vector<std::string>(250, "tcp://" + std::string(200, 'a'))};
  const auto hello = received(OutgoingMessage::hello(info))->hello();
  EXPECT_FALSE(hello.addresses.empty());
  EXPECT_LT(hello.addresses.size(), info.addresses.size());
  EXPECT_EQ(hello.addresses.front(), info.addresses.front());
  const std::string reason(100'000, 'r');
  const auto goodbye = received(OutgoingMessage::goodbye(Error(ErrorKind::unsupported, reason)))->goodbye();
  ASSERT_TRUE(goodbye);
  EXPECT_TRUE(reason.starts_with(goodbye->what()));
  EXPECT_FALSE(std::string(goodbye->what()).empty());
}

TEST(Message, RequestRoundTrip) {
  auto message = OutgoingMessage::request(3);
  message->argument(0).set_int(-1);
  message->argument(2).set_text("c");
  const auto again = received(message->seal_request({7, 8, 9}, 10, frame_flags::notify));
  EXPECT_EQ(again->prefix().kind, FrameKind::request);
  EXPECT_EQ(again->prefix().call_id, 10U);
  EXPECT_EQ(again->prefix().flags, frame_flags::notify);
  const RequestInfo info = again->request();
  EXPECT_EQ(info.method, 7U);
  EXPECT_EQ(info.signature, 8U);
  EXPECT_EQ(info.timeout_ns, 9U);
  ASSERT_EQ(again->argument_count(), 3U);
  EXPECT_EQ(again->argument(0).get_int(), -1);
  EXPECT_TRUE(again->argument(1).is_nil());
  EXPECT_EQ(again->argument(2).get_text(), "c");
  EXPECT_EQ(kind_of([&] { return again->argument(3); }), ErrorKind::protocol_error);
  EXPECT_FALSE(again->has_sections());
}

TEST(Message, ReplyRoundTrip) {
  auto message = OutgoingMessage::reply();
  message->result().set_real(2.5);
  const auto again = received(message->seal_reply(4));
  EXPECT_EQ(again->prefix().kind, FrameKind::reply);
  EXPECT_EQ(again->prefix().call_id, 4U);
  EXPECT_FALSE(again->failure());
  EXPECT_EQ(again->result().get_real(), 2.5);
}

TEST(Message, FailureRoundTrip) {
  const auto again = received(OutgoingMessage::failure(
      4, {ErrorKind::not_found, "no such thing", "worker1", "a.b", "std::logic_error"}));
  const auto failure = again->failure();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->kind, ErrorKind::not_found);
  EXPECT_EQ(failure->message, "no such thing");
  EXPECT_EQ(failure->worker, "worker1");
  EXPECT_EQ(failure->method, "a.b");
  EXPECT_EQ(failure->type, "std::logic_error");
  EXPECT_EQ(failure->payload, nullptr);
}

TEST(Message, AFailureHasItsPayloadUnlessThatIsTooLarge) {
  const auto of = [](std::string type, std::size_t size) {
    return received(OutgoingMessage::failure(4, {.message = "why",
                                                 .payload = std::make_shared<const ErrorPayload>(ErrorPayload{
                                                     std::move(type), std::string(size, '\0')})}))
        ->failure();
  };
  const auto whole = of("Quota", max_error_payload - 5);
  ASSERT_TRUE(whole && whole->payload != nullptr);
  EXPECT_EQ(whole->payload->type, "Quota");
  EXPECT_EQ(whole->payload->bytes, std::string(max_error_payload - 5, '\0'));
  EXPECT_EQ(of("Quota", max_error_payload - 4)->payload, nullptr);
  EXPECT_EQ(of(std::string(max_error_payload + 1, 'x'), 0)->payload, nullptr);
  EXPECT_EQ(of("", 8)->payload, nullptr);
  EXPECT_EQ(of("Quota", max_error_payload)->message, "why");
}

TEST(Message, AnUnknownErrorKindReadsAsInternal) {
  for (const auto kind : {ErrorKind{999}, ErrorKind{0}, ErrorKind::internal})
    EXPECT_EQ(received(OutgoingMessage::failure(1, {kind, "x", {}, {}, {}}))->failure()->kind,
              ErrorKind::internal);
  EXPECT_EQ(received(OutgoingMessage::goodbye(Error(ErrorKind{999}, "x")))->goodbye()->kind(),
            ErrorKind::internal);
}

TEST(Message, GoodbyeRoundTrip) {
  EXPECT_FALSE(received(OutgoingMessage::goodbye(std::nullopt))->goodbye());
  const auto reason = received(OutgoingMessage::goodbye(Error(ErrorKind::unsupported, "too old")))->goodbye();
  EXPECT_EQ(reason->kind(), ErrorKind::unsupported);
  EXPECT_STREQ(reason->what(), "too old");
}

TEST(Message, PlainFramesRoundTrip) {
  for (const auto kind : {FrameKind::ping, FrameKind::pong, FrameKind::cancel}) {
    const auto again = received(OutgoingMessage::plain(kind, 77));
    EXPECT_EQ(again->prefix().kind, kind);
    EXPECT_EQ(again->prefix().call_id, 77U);
  }
}

TEST(Message, SectionsTravelWithRequestsAndReplies) {
  auto request = OutgoingMessage::request(0);
  request->section("trace", false).set_uint(5);
  request->section("pass", true).set_text("p");
  auto reply = OutgoingMessage::reply();
  reply->section("trace", false).set_uint(6);
  const auto in = received(request->seal_request({1, 1, 0}, 1, 0));
  EXPECT_TRUE(in->has_sections());
  EXPECT_EQ(in->section("trace")->get_uint(), 5U);
  EXPECT_EQ(in->section("pass")->get_text(), "p");
  EXPECT_FALSE(in->section("other"));
  EXPECT_EQ(in->unknown_required([](std::string_view) { return false; }), "pass");
  EXPECT_FALSE(in->unknown_required([](std::string_view key) { return key == "pass"; }));
  EXPECT_EQ(received(reply->seal_reply(1))->section("trace")->get_uint(), 6U);
}

TEST(Message, AttachmentsKeepTheirOrderAndSizes) {
  auto message = OutgoingMessage::request(1);
  std::vector<Buffer> sent;
  for (const std::size_t size : {0U, 1U, 64U, 65U, 1000U}) {
    sent.push_back(Buffer::allocate(size));
    for (auto& byte : sent.back().bytes()) byte = std::byte(size);
    message->attach(sent.back());
  }
  message->argument(0).set_attachment(sent[1]);
  const auto again = received(message->seal_request({1, 1, 0}, 1, 0));
  EXPECT_EQ(again->prefix().body_bytes, 64U + 64 + 128 + 1024 + 64);
  for (std::uint32_t i = 0; i < sent.size(); ++i) {
    ASSERT_EQ(again->attachment(i).size(), sent[i].size());
    if (!sent[i].empty()) {
      EXPECT_EQ(std::memcmp(again->attachment(i).data(), sent[i].data(), sent[i].size()), 0);
    }
  }
  EXPECT_EQ(again->argument(0).get_attachment().size(), 1U);
  EXPECT_EQ(kind_of([&] { return again->attachment(6); }), ErrorKind::protocol_error);
  EXPECT_EQ(again->bytes(), again->prefix().header_words * 8 + again->prefix().body_bytes);
}

TEST(Message, TheSenderRefusesMessagesBeyondThePeersLimits) {
  Limits limits;
  limits.header = 1024;
  limits.attachments = 2;
  limits.message = 256;
  const auto refusal = [&](std::size_t text, std::initializer_list<std::size_t> attachments) {
    auto message = OutgoingMessage::request(1);
    message->argument(0).set_text(std::string(text, 'x'));
    for (const std::size_t size : attachments) message->attach(Buffer::allocate(size));
    const OutboundFrame frame = message->seal_request({1, 1, 0}, 1, 0);
    const auto here = kind_of([&] { return check_outgoing(frame, limits), 0; });
    EXPECT_EQ(here, kind_of([&] { return inbound(frame, limits); }));
    return here;
  };
  EXPECT_EQ(refusal(100, {64, 64}), std::nullopt);
  EXPECT_EQ(refusal(2000, {}), ErrorKind::resource_exhausted);
  EXPECT_EQ(refusal(1, {1, 1, 1}), ErrorKind::resource_exhausted);
  EXPECT_EQ(refusal(1, {64, 193}), ErrorKind::resource_exhausted);
}

// --- check_header ---

struct Frame {
  Prefix prefix;
  std::vector<std::byte> header;

  // The result of check_header, and then of reading the frame, with a correct checksum.
  std::vector<std::uint64_t> check(const Limits& limits = {}) {
    std::array<std::byte, Prefix::size> bytes{};
    encode(prefix, bytes);
    prefix.checksum = frame_checksum(bytes, header);
    encode(prefix, bytes);
    auto sizes = check_header(prefix, bytes, header, limits);
    InboundFrame frame{prefix, Buffer::copy(header), std::vector<Buffer>(sizes.size())};
    const IncomingMessage message(std::move(frame), limits);
    return sizes;
  }
  std::optional<ErrorKind> refusal(const Limits& limits = {}) {
    return kind_of([&] { return check(limits); });
  }
};

Frame frame_of(capnp::MessageBuilder& builder, FrameKind kind) {
  Frame frame;
  frame.prefix.kind = kind;
  frame.prefix.header_words = static_cast<std::uint32_t>(capnp::computeSerializedSizeInWords(builder));
  frame.header.resize(frame.prefix.header_words * std::size_t{8});
  kj::ArrayOutputStream stream({reinterpret_cast<kj::byte*>(frame.header.data()), frame.header.size()});
  capnp::writeMessage(stream, builder);
  return frame;
}

Frame with_table(const std::vector<std::uint64_t>& sizes, std::uint64_t body) {
  capnp::MallocMessageBuilder builder;
  auto header = builder.initRoot<schema::Header>();
  header.initRequest();
  auto table = header.initAttachments(static_cast<unsigned>(sizes.size()));
  for (unsigned i = 0; i < sizes.size(); ++i) table.set(i, sizes[i]);
  Frame frame = frame_of(builder, FrameKind::request);
  frame.prefix.body_bytes = body;
  return frame;
}

void put(Frame& frame, std::size_t offset, std::uint32_t value) {
  std::memcpy(frame.header.data() + offset, &value, sizeof value);
}

TEST(CheckHeader, GivesTheAttachmentsSizes) {
  EXPECT_EQ(with_table({}, 0).check(), std::vector<std::uint64_t>{});
  EXPECT_EQ(with_table({0, 1, 64, 65}, 256).check(), (std::vector<std::uint64_t>{0, 1, 64, 65}));
}

TEST(CheckHeader, RefusesAttachmentsThatAreNotTheBody) {
  EXPECT_EQ(with_table({1}, 0).refusal(), ErrorKind::protocol_error);
  EXPECT_EQ(with_table({1}, 128).refusal(), ErrorKind::protocol_error);
  EXPECT_EQ(with_table({64, 64}, 64).refusal(), ErrorKind::protocol_error);
  EXPECT_EQ(with_table({}, 64).refusal(), ErrorKind::protocol_error);
  EXPECT_EQ(with_table({~std::uint64_t{0}}, 64).refusal(), ErrorKind::protocol_error);
  // Sums of sizes that overflow to the value in the prefix.
  Limits limits;
  limits.message = ~std::uint64_t{0};
  EXPECT_EQ(with_table({~std::uint64_t{0} - 63, 128}, 64).refusal(limits), ErrorKind::protocol_error);
  EXPECT_EQ(with_table({std::uint64_t{1} << 63, std::uint64_t{1} << 63}, 0).refusal(limits),
            ErrorKind::protocol_error);
}

TEST(CheckHeader, RefusesTooManyAttachmentsBeforeItMakesRoomForThem) {
  Limits limits;
  limits.attachments = 3;
  EXPECT_EQ(with_table({0, 0, 0}, 0).refusal(limits), std::nullopt);
  EXPECT_EQ(with_table({0, 0, 0, 0}, 0).refusal(limits), ErrorKind::resource_exhausted);
}

TEST(CheckHeader, RefusesAWrongChecksum) {
  Frame frame = with_table({}, 0);
  std::array<std::byte, Prefix::size> bytes{};
  encode(frame.prefix, bytes);
  frame.prefix.checksum = frame_checksum(bytes, frame.header) ^ 1;
  encode(frame.prefix, bytes);
  EXPECT_EQ(message_of([&] { return check_header(frame.prefix, bytes, frame.header, {}); }),
            "bad frame: the checksum does not match");
}

TEST(CheckHeader, RefusesAFalseSegmentTable) {
  Frame frame = with_table({}, 0);
  const auto size = static_cast<std::uint32_t>(frame.header.size() / 8 - 1);
  const auto with = [&](std::uint32_t count_less_one, std::uint32_t first) {
    Frame other = frame;
    put(other, 0, count_less_one);
    put(other, 4, first);
    return other.refusal();
  };
  EXPECT_EQ(with(0, size), std::nullopt);
  EXPECT_EQ(with(0, size + 1), ErrorKind::protocol_error);
  EXPECT_EQ(with(0, size - 1), ErrorKind::protocol_error);
  EXPECT_EQ(with(0, 0xffffffff), ErrorKind::protocol_error);
  EXPECT_EQ(with(1, size), ErrorKind::protocol_error);
  EXPECT_EQ(with(63, size), ErrorKind::protocol_error);
  EXPECT_EQ(with(0xffffffff, size), ErrorKind::protocol_error);
  EXPECT_EQ(with(0xfffffffe, size), ErrorKind::protocol_error);
}

TEST(CheckHeader, LimitsTheSegments) {
  // A header of many small segments.
  capnp::MallocMessageBuilder builder(1, capnp::AllocationStrategy::FIXED_SIZE);
  auto hello = builder.initRoot<schema::Header>().initHello();
  auto addresses = hello.initAddresses(20);
  for (unsigned i = 0; i < 20; ++i) addresses.set(i, "some address that needs room of its own");
  ASSERT_GT(builder.getSegmentsForOutput().size(), 10U);
  Frame frame = frame_of(builder, FrameKind::hello);
  Limits limits;
  limits.segments = static_cast<std::uint32_t>(builder.getSegmentsForOutput().size());
  EXPECT_EQ(frame.refusal(limits), std::nullopt);
  --limits.segments;
  EXPECT_EQ(frame.refusal(limits), ErrorKind::protocol_error);
}

TEST(CheckHeader, RefusesAHeaderOfAnotherKindThanItsPrefix) {
  for (const auto kind :
       {FrameKind::hello, FrameKind::reply, FrameKind::cancel, FrameKind::goodbye, FrameKind::ping}) {
    Frame frame = with_table({}, 0);
    frame.prefix.kind = kind;
    EXPECT_EQ(frame.refusal(), ErrorKind::protocol_error);
  }
}

TEST(CheckHeader, RefusesASizeThatIsNotThePrefixs) {
  Frame frame = with_table({}, 0);
  --frame.prefix.header_words;
  EXPECT_EQ(frame.refusal(), ErrorKind::protocol_error);
  frame.prefix.header_words = 0;
  frame.header.clear();
  EXPECT_EQ(frame.refusal(), ErrorKind::protocol_error);
}

// --- What Cap'n Proto finds while it reads ---

std::shared_ptr<IncomingMessage> message_of(Frame frame, const Limits& limits = {}) {
  (void)frame.check(limits);
  InboundFrame in;
  in.prefix = frame.prefix;
  in.header = Buffer::copy(frame.header);
  return std::make_shared<IncomingMessage>(std::move(in), limits);
}

// Lists of elements without any words could claim half a billion values in a few words.
TEST(Message, ListsOfEmptyElementsAreRefused) {
  capnp::MallocMessageBuilder builder;
  auto request = builder.initRoot<schema::Header>().initRequest();
  auto value = request.initArguments(1)[0];
  value.initList(1);
  Frame frame = frame_of(builder, FrameKind::request);
  // Finds the tag of that list, an element of 3 words. Claims 500 elements of no words instead, which is
  // below the traversal limit.
  bool found = false;
  for (std::size_t at = frame.header.size(); !found && at >= 8; at -= 8) {
    std::uint64_t word;
    std::memcpy(&word, frame.header.data() + at - 8, 8);
    if (word >> 32 == 0x00010002 && (word & 0xffffffff) == (1 << 2)) {
      const std::uint64_t tag = std::uint64_t{500} << 2;
      std::memcpy(frame.header.data() + at - 8, &tag, 8);
      found = true;
    }
  }
  ASSERT_TRUE(found);
  const auto message = message_of(frame);
  EXPECT_EQ(kind_of([&] { return message->argument(0).size(); }), ErrorKind::protocol_error);
  EXPECT_EQ(kind_of([&] { return message->argument(0).at(0); }), ErrorKind::protocol_error);
  EXPECT_EQ(kind_of([&] { return Codec<std::vector<std::optional<int>>>::decode(message->argument(0)); }),
            ErrorKind::protocol_error);
}

TEST(Message, NestingIsLimited) {
  const auto nested = [](int depth) {
    capnp::MallocMessageBuilder builder;
    auto value = builder.initRoot<schema::Header>().initRequest().initArguments(1)[0];
    for (int i = 0; i < depth; ++i) value = value.initList(1)[0];
    value.setInt(1);
    Limits limits;
    limits.nesting = 10;
    const auto message = message_of(frame_of(builder, FrameKind::request), limits);
    return kind_of([&] {
      ValueReader reader = message->argument(0);
      for (int i = 0; i < depth; ++i) reader = reader.at(0);
      return reader.get_int();
    });
  };
  EXPECT_EQ(nested(3), std::nullopt);
  EXPECT_EQ(nested(5), ErrorKind::protocol_error);
}

// Each list contains the next one many times, through pointers to the same target. A few hundred words would
// decode to millions of values.
TEST(Message, SharedPointerTargetsAreNotFollowedWithoutLimit) {
  constexpr std::uint64_t levels = 8, width = 30;
  // A builder makes the root struct pointers, Header and Request. The test writes the words of the values
  // after them.
  capnp::MallocMessageBuilder builder;
  auto request = builder.initRoot<schema::Header>().initRequest();
  auto value = request.initArguments(1)[0];
  for (std::uint64_t level = 0; level < levels; ++level) {
    auto list = value.initList(width);
    value = list[0];
  }
  value.setInt(1);
  Frame frame = frame_of(builder, FrameKind::request);
  // In each list, elements 1… become copies of element 0. Their pointers are redirected to the same target.
  auto* words = reinterpret_cast<std::uint64_t*>(frame.header.data());
  const std::size_t count = frame.header.size() / 8;
  for (std::size_t tag = 1; tag + 1 < count; ++tag) {
    if (words[tag] != (0x0001000200000000ULL | width << 2)) continue;
    for (std::uint64_t i = 1; i < width; ++i) {
      for (std::size_t w = 0; w < 3; ++w) words[tag + 1 + i * 3 + w] = words[tag + 1 + w];
      std::uint64_t& pointer = words[tag + 1 + i * 3 + 2];
      if ((pointer & 3) == 1) pointer = (pointer & ~0xffffffffULL) | ((pointer & 0xffffffff) - (i * 3 << 2));
    }
  }
  const auto message = message_of(frame);
  struct Walk {
    static std::uint64_t values(const ValueReader& reader) {
      if (reader.kind() != ValueKind::list) return 1;
      std::uint64_t sum = 0;
      for (std::size_t i = 0, n = reader.size(); i < n; ++i) sum += values(reader.at(i));
      return sum;
    }
  };
  EXPECT_EQ(kind_of([&] { return Walk::values(message->argument(0)); }), ErrorKind::protocol_error);
}

TEST(Message, AHelloOfVeryManyAddressesIsRefused) {
  HelloInfo info;
  info.name = "x";
  info.addresses.resize(257, "a");
  EXPECT_EQ(kind_of([&] { return received(OutgoingMessage::hello(info))->hello(); }),
            ErrorKind::protocol_error);
}

}  // namespace
}  // namespace weft::rpc::message_test
