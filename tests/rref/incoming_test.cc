// Messages that no honest agent sends: each is an error for its sender, and leaves no state.
#include <weft/rref/rref.h>
#include <weft/rref/section.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::incoming_test {
namespace {

using protocol::Handover;

class IncomingTest : public RRefTest {
 protected:
  using Write = std::function<void(rpc::ValueWriter)>;

  void SetUp() override {
    RRefTest::SetUp();
    // The time for which an owner waits for a creator that never connects.
    adjust = [](rpc::AgentOptions& options) { options.handshake_timeout = std::chrono::seconds{2}; };
    start({"owner", "mallory", "bert"});
    box = create<Box>(peer("mallory", "owner"), 1);
    got(box.ready());
  }
  void TearDown() override {
    EXPECT_EQ(got(box.call<&Box::get>()), 1) << "the agents still get on with each other";
    box = {};
    expect_nothing_left();
    RRefTest::TearDown();
  }

  // A call with this section, as mallory sends it.
  std::optional<rpc::Error> send(const std::string& to, const std::string& method,
                                 const std::vector<Write>& arguments, const Write& section) {
    const rpc::Peer peer = this->peer("mallory", to);
    rpc::OutgoingCall call = peer.calls().make(method, arguments.size());
    call.begin();
    for (std::size_t i = 0; i < arguments.size(); ++i) arguments[i](call.message().argument(i));
    section(call.message().section(section_key, true));
    call.end();
    return error_of([&] {
      got(peer.calls().start_typed<void>(std::move(call), [](rpc::Result<rpc::PendingCall::Reply>&& reply) {
        return reply.ok() ? rpc::Result<void>{} : rpc::Result<void>(reply.error());
      }));
    });
  }
  std::optional<rpc::Error> send(const std::string& to, const std::string& method,
                                 const std::vector<Write>& arguments, const RRefSection& section) {
    return send(to, method, arguments,
                [&](rpc::ValueWriter writer) { section.write(writer, id("mallory"), id(to)); });
  }
  static Write reference(std::uint64_t index) {
    return [index](rpc::ValueWriter writer) { writer.set_record(1).field(0, value_field).set_uint(index); };
  }
  static void expect(const std::optional<rpc::Error>& error, ErrorKind kind, const std::string& words) {
    ASSERT_TRUE(error) << words;
    EXPECT_EQ(error->kind(), kind) << words;
    EXPECT_NE(std::string(error->what()).find(words), std::string::npos) << error->what();
  }
  // A section that hands one reference over.
  static RRefSection carrying(const Handover& handover, const std::string& addresses = "") {
    RRefSection section;
    section.carried = {handover};
    section.owner_addresses = {addresses};
    section.local = {0};
    return section;
  }
  rpc::AgentId id(const std::string& name) { return agent(name).id(); }

  RRef<Box> box;
};

TEST_F(IncomingTest, MalformedSections) {
  expect(send("owner", "keeper.ping", {}, [](rpc::ValueWriter writer) { writer.set_text("rref"); }),
         ErrorKind::type_mismatch, "text");
  expect(send("owner", "keeper.ping", {},
              [](rpc::ValueWriter writer) { writer.set_record(1).field(0, "carried").set_int(7); }),
         ErrorKind::type_mismatch, "carried");
  const auto carries = [](const Write& reference) {
    return
        [=](rpc::ValueWriter writer) { reference(writer.set_record(1).field(0, "carried").set_list(1)[0]); };
  };
  const std::array<std::int64_t, 4> four_ids{};
  expect(send("owner", "keeper.ping", {}, carries([&](rpc::ValueWriter w) { w.set_ints(four_ids); })),
         ErrorKind::invalid_argument, "malformed");
  expect(send("owner", "keeper.ping", {}, carries([](rpc::ValueWriter w) { w.set_list(2)[0].set_nil(); })),
         ErrorKind::invalid_argument, "malformed");
  expect(send("owner", "keeper.ping", {}, carries([](rpc::ValueWriter w) { w.set_nil(); })),
         ErrorKind::type_mismatch, "carried");
  RRefSection uneven = carrying({box.id(), {}, id("owner"), id("mallory"), false});
  uneven.local.clear();
  expect(send("owner", "keeper.ping", {}, uneven), ErrorKind::invalid_argument, "malformed");
}

TEST_F(IncomingTest, ReferencesThatTheMessageDoesNotCarry) {
  expect(send("owner", "keeper.look", {reference(0)}, RRefSection{}), ErrorKind::invalid_argument,
         "is not part of its message");
  expect(send("owner", "keeper.look", {reference(std::uint64_t{1} << 60)}, RRefSection{}),
         ErrorKind::invalid_argument, "is not part of its message");
  expect(send("owner", "keeper.sum", {reference(3), reference(3)}, RRefSection{}),
         ErrorKind::invalid_argument, "is not part of its message");
  expect(send("owner", "keeper.sum",
              {[](rpc::ValueWriter w) { w.set_record(1).field(0, value_field).set_text("x"); },
               [](rpc::ValueWriter w) { w.set_int(1); }},
              RRefSection{}),
         ErrorKind::type_mismatch, "text");
}

TEST_F(IncomingTest, ForksThatTheSenderDoesNotHaveAreRefused) {
  const auto fork = *box.reference()->fork();
  const Handover not_mine{
      box.id(), {id("bert").incarnation, fork.number + 7}, id("owner"), id("mallory"), false};
  expect(send("owner", "keeper.look", {reference(0)}, carrying(not_mine)), ErrorKind::not_found,
         "the object does not exist");
  expect(send("bert", "keeper.look", {reference(0)}, carrying(not_mine)), ErrorKind::not_found,
         "the object does not exist");
  const Handover no_object{
      {id("mallory").incarnation, 99}, {id("mallory").incarnation, 99}, id("owner"), id("bert"), false};
  expect(send("owner", "keeper.look", {reference(0)}, carrying(no_object)), ErrorKind::not_found,
         "the object does not exist");
  const Handover lent_by_nobody{box.id(), {id("owner").incarnation, 1}, id("owner"), id("mallory"), true};
  expect(send("bert", "keeper.look", {reference(0)}, carrying(lent_by_nobody)), ErrorKind::not_found,
         "the object does not exist");
  EXPECT_EQ(keepers["bert"]->kept, 0);
}

TEST_F(IncomingTest, OwnersThatDoNotExist) {
  const rpc::AgentId nobody{"nobody", 12345};
  const Handover handover{
      {id("mallory").incarnation, 5}, {id("mallory").incarnation, 6}, nobody, id("mallory"), false};
  expect(send("bert", "keeper.look", {reference(0)}, carrying(handover)), ErrorKind::owner_lost, "nobody");
  const Handover other{
      {id("mallory").incarnation, 7}, {id("mallory").incarnation, 8}, {"other", 54321}, id("mallory"), false};
  expect(send("bert", "keeper.look", {reference(0)},
              carrying(other, "no address inproc://nowhere gopher://old")),
         ErrorKind::owner_lost, "other");
}

TEST_F(IncomingTest, ReferencesWithinAnAgentStayWithinIt) {
  RRefSection section = carrying({box.id(), {}, id("owner"), id("owner"), true});
  section.local = {1};
  expect(send("owner", "keeper.look", {reference(0)}, section), ErrorKind::invalid_argument, "not in flight");
}

TEST_F(IncomingTest, OneInvalidReferenceReleasesTheOthersOfTheMessage) {
  const auto fork = *box.reference()->fork();
  RRefSection section =
      carrying({box.id(), {id("mallory").incarnation, fork.number + 1}, id("owner"), id("mallory"), false});
  section.carried.insert(section.carried.begin(), {box.id(), {1, 2}, id("owner"), id("mallory"), false});
  section.owner_addresses = {"", ""};
  section.local = {0, 0};
  expect(send("owner", "keeper.look", {reference(1)}, section), ErrorKind::not_found,
         "the object does not exist");
}

TEST_F(IncomingTest, RequestsToObjectsThatDoNotExist) {
  RRefSection section;
  section.target = Handover{{1, 2}, {1, 2}, id("owner"), id("mallory"), false};
  expect(send("owner", "box.get", {}, section), ErrorKind::not_found, "the object does not exist");
  expect(send("owner", "weft.rref.fetch", {}, section), ErrorKind::not_found, "the object does not exist");
  expect(send("owner", "weft.rref.fetch", {}, RRefSection{}), ErrorKind::invalid_argument,
         "without an object");
  expect(send("owner", "box.get", {}, RRefSection{}), ErrorKind::not_found, "is a method of objects");
  section.target->rref = box.id();
  EXPECT_FALSE(send("owner", "keeper.ping", {}, section)) << "a served method may be called about an object";
}

TEST_F(IncomingTest, RequestsToAnObjectWhoseCreatorNeverConnects) {
  RRefSection section;
  section.target = Handover{{4711, 1}, {4711, 1}, id("owner"), {"ghost", 4711}, false};
  expect(send("owner", "box.get", {}, section), ErrorKind::failed_precondition, "ghost");
}

TEST_F(IncomingTest, CreationsUnderAnotherOwnerOrOriginAreRefused) {
  const Write one = [](rpc::ValueWriter writer) { writer.set_int(1); };
  RRefSection section;
  section.result = Handover{
      {id("mallory").incarnation, 1}, {id("mallory").incarnation, 1}, id("bert"), id("mallory"), false};
  expect(send("owner", "box.new", {one}, section), ErrorKind::invalid_argument,
         "for the owner bert arrived at owner");
  section.result->owner = id("owner");
  section.result->rref.origin = id("bert").incarnation;
  expect(send("owner", "box.new", {one}, section), ErrorKind::not_found, "the object does not exist");
  section.result->rref = box.id();
  expect(send("owner", "box.new", {one}, section), ErrorKind::not_found, "the object does not exist");
  expect(send("owner", "box.new", {one}, RRefSection{}), ErrorKind::invalid_argument, "rref::create");
  EXPECT_EQ(Counted::made, 1);
}

TEST_F(IncomingTest, RepliesWithBadSections) {
  const auto serve_reply = [&](const std::string& name, const Write& section) {
    rpc::MethodEntry entry;
    entry.name = name;
    entry.id = rpc::name_hash(name);
    entry.result = "rref<box>";
    entry.run = [section](std::shared_ptr<rpc::IncomingCall> call) {
      call->reply([&](rpc::ValueWriter writer) {
        section(writer.message().section(section_key, true));
        reference(0)(writer);
      });
    };
    agent("owner").core()->methods().serve(std::move(entry));
  };
  const auto ask = [&](const std::string& name) {
    const rpc::Peer owner = peer("mallory", "owner");
    rpc::OutgoingCall call = owner.calls().make(name, 0);
    call.begin();
    call.end();
    return error_of([&] {
      got(owner.calls().start_typed<RRef<Box>>(std::move(call),
                                               [name](rpc::Result<rpc::PendingCall::Reply>&& reply) {
                                                 return rpc::decode_reply<RRef<Box>>(std::move(reply), name);
                                               }));
    });
  };
  serve_reply("garbage", [](rpc::ValueWriter writer) { writer.set_bool(true); });
  expect(ask("garbage"), ErrorKind::type_mismatch, "boolean");
  const auto written = [this](const RRefSection& section) {
    return [this, section](rpc::ValueWriter writer) { section.write(writer, id("owner"), id("mallory")); };
  };
  serve_reply("empty", written({}));
  expect(ask("empty"), ErrorKind::invalid_argument, "is not part of its message");
  serve_reply("stale", written(carrying({box.id(), {1, 2}, id("owner"), id("mallory"), true})));
  expect(ask("stale"), ErrorKind::not_found, "the object does not exist");
}

}  // namespace
}  // namespace weft::rref::incoming_test
