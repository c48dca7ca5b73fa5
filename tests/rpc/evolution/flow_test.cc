// This version communicates with earlier versions also where frames depend on each other: lanes, credit, a
// cancellation, the pulls of a stream. record_main.cc recorded the conversations. The players in this file
// send the recorded frames. They send a frame only after this build has sent the frame to which it replies.
#include "tests/rpc/evolution/flow.h"

#include <filesystem>
#include <fstream>

#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::flow_test {
namespace {

using probe::Socket;
using recorded::Flow;

constexpr std::uint64_t complete = 0, striped = 1;  // steps of lanes

struct Frame {
  InboundFrame in;
  std::vector<std::byte> bytes;
  FrameKind kind() const { return in.prefix.kind; }
  std::uint64_t id() const { return in.prefix.call_id; }
  IncomingMessage message() const { return IncomingMessage(in, Limits{}); }
};

// Reads the frames. The conversation has no attachments.
std::vector<Frame> read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (text.empty()) throw std::runtime_error("no recording at " + path.string());
  std::vector<Frame> frames;
  auto rest = std::as_bytes(std::span(text));
  while (!rest.empty()) {
    Frame frame;
    frame.in.prefix = decode(rest.first<Prefix::size>(), Limits{});
    const std::size_t end = Prefix::size + frame.in.prefix.header_words * std::size_t{8};
    frame.in.header = Buffer::copy(rest.subspan(Prefix::size, end - Prefix::size));
    frame.bytes.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(end));
    frames.push_back(std::move(frame));
    rest = rest.subspan(end);
  }
  return frames;
}

// Returns whether the frame answers a pull of `items` with the last item.
bool ends_stream(const Frame& frame) {
  if (frame.kind() != FrameKind::reply || frame.id() <= *recorded::flow_calls.rbegin()) return false;
  auto answer = frame.message();
  if (answer.failure()) return false;
  ValueReader end;
  return answer.result().find_field("end", 4, end) && end.get_bool();
}

std::vector<std::filesystem::path> recordings() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(WEFT_RECORDED_FRAMES))
    if (std::filesystem::exists(entry.path() / "flow_client.frames")) found.push_back(entry.path());
  std::sort(found.begin(), found.end());
  return found;
}

std::string name_of(const testing::TestParamInfo<std::filesystem::path>& info) {
  std::string name = info.param.filename();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
}

// The other side's output so far.
class Heard {
 public:
  explicit Heard(Socket& from) : from_(from) {}

  void until(const std::string& what, const std::function<bool(const Heard&)>& enough) {
    while (!enough(*this)) {
      auto frame = from_.next();
      if (!frame) throw std::runtime_error("the connection has ended, and still not: " + what);
      const Prefix& prefix = frame->prefix;
      if (prefix.kind == FrameKind::request && (prefix.flags & frame_flags::notify) != 0) ++notifications;
      if (prefix.kind == FrameKind::credit) credit += IncomingMessage(*frame, Limits{}).credit().calls;
      said[prefix.kind].emplace(prefix.call_id, std::move(*frame));
    }
  }
  bool has(FrameKind kind, std::uint64_t id) const {
    const auto found = said.find(kind);
    return found != said.end() && found->second.contains(id);
  }
  std::unique_ptr<IncomingMessage> message(FrameKind kind, std::uint64_t id) const {
    return std::make_unique<IncomingMessage>(said.at(kind).at(id), Limits{});
  }

  std::map<FrameKind, std::map<std::uint64_t, InboundFrame>> said;
  std::size_t notifications = 0;
  std::uint64_t credit = 0;

 private:
  Socket& from_;
};

// false: the recording has the earlier kind of lanes, which this version does not use.
bool has_lanes(const std::vector<Frame>& says) { return says.front().message().hello().lanes != 0; }
// The hello with which a side makes a lane.
std::vector<std::byte> hello_of_lane(const std::vector<Frame>& says, std::uint64_t key) {
  HelloInfo hello = says.front().message().hello();
  hello.lane_key = key;
  return test::bytes_of(OutgoingMessage::hello(hello));
}

class FlowTest : public testing::TestWithParam<std::filesystem::path> {};
INSTANTIATE_TEST_SUITE_P(Versions, FlowTest, testing::ValuesIn(recordings()), name_of);

TEST_P(FlowTest, TheRecordedClientIsServed) {
  Agent server(recorded::flow_server());
  server.serve(std::make_shared<Flow>());
  auto client = Socket::connected(server.addresses().front());
  Heard heard(client);
  std::optional<Socket> lane;
  std::set<std::uint64_t> pulls, asked;
  const auto says = read(GetParam() / "flow_client.frames");
  for (const Frame& frame : says) {
    if (frame.kind() == FrameKind::lane) {
      if (!has_lanes(says)) continue;
      heard.until("its offer", [](const Heard& h) { return h.said.contains(FrameKind::lane); });
      lane.emplace(Socket::connected(server.addresses().front()));
      const std::uint64_t key = heard.said.at(FrameKind::lane).begin()->first;
      ASSERT_TRUE(lane->send(hello_of_lane(says, key + 1)));
      heard.until("it has the lane", [](const Heard& h) { return h.has(FrameKind::lane, complete); });
    }
    if (frame.kind() == FrameKind::request && (frame.in.prefix.flags & frame_flags::notify) == 0) {
      if (frame.message().request().method == name_hash(detail::StreamTable::next_method)) {
        const std::uint64_t stream = asked.empty() ? 0 : *asked.rbegin();
        heard.until("the stream", [&](const Heard& h) { return h.has(FrameKind::reply, stream); });
        pulls.insert(frame.id());
      } else {
        asked.insert(frame.id());
      }
    }
    ASSERT_TRUE(client.send(frame.bytes));
  }
  ASSERT_EQ(asked, recorded::flow_calls) << "what was recorded";
  ASSERT_FALSE(pulls.empty()) << "what was recorded";
  heard.until("all answers", [&](const Heard& h) {
    const auto answered = [&](std::uint64_t id) { return h.has(FrameKind::reply, id); };
    return std::all_of(asked.begin(), asked.end(), answered) &&
           std::all_of(pulls.begin(), pulls.end(), answered);
  });

  EXPECT_EQ(heard.credit, recorded::flow_credit);
  EXPECT_EQ(Codec<std::uint64_t>::decode(heard.message(FrameKind::reply, recorded::flow_counted)->result()),
            recorded::flow_credit);
  const auto given_up = heard.message(FrameKind::reply, recorded::flow_cancelled)->failure();
  ASSERT_TRUE(given_up);
  EXPECT_EQ(given_up->kind, ErrorKind::cancelled);
  std::map<std::uint64_t, std::int64_t> items;
  bool end = false;
  for (const std::uint64_t id : pulls) {
    const auto answer = heard.message(FrameKind::reply, id);
    if (answer->failure()) continue;  // a pull behind the end
    ValueReader field;
    ASSERT_TRUE(answer->result().find_field("first", 0, field));
    std::uint64_t at = field.get_uint();
    ASSERT_TRUE(answer->result().find_field("items", 1, field));
    for (std::size_t i = 0; i < field.size(); ++i) items[at++] = field.at(i).get_int();
    ASSERT_TRUE(answer->result().find_field("end", 4, field));
    end = end || field.get_bool();
  }
  EXPECT_EQ(items, (std::map<std::uint64_t, std::int64_t>{{0, -1}, {1, 0}, {2, 3}}));
  EXPECT_TRUE(end);
}

TEST_P(FlowTest, TheRecordedServerIsUnderstood) {
  const auto says = read(GetParam() / "flow_server.frames");
  Socket listener = Socket::listening();
  Agent client(recorded::flow_client());
  const Peer peer = client.connect(listener.address());
  test::Handover<recorded::FlowAnswers> answers;
  std::jthread caller([&] {
    test::got(peer.ready());
    answers.give(recorded::talk(peer));
  });

  Socket server = listener.accept();
  std::optional<Socket> lane;
  Heard heard(server);
  std::size_t credits = 0;
  for (const Frame& frame : says) {
    switch (frame.kind()) {
      case FrameKind::lane: {
        if (!has_lanes(says)) continue;
        if (frame.id() == striped)
          heard.until("it stripes", [](const Heard& h) { return h.has(FrameKind::lane, striped); });
        if (frame.id() != complete) break;
        lane.emplace(listener.accept());
        ASSERT_TRUE(lane->next());
        ASSERT_TRUE(lane->send(hello_of_lane(says, 0)));
        break;
      }
      case FrameKind::credit: {
        ++credits;
        heard.until("a notification", [&](const Heard& h) { return h.notifications >= credits; });
        break;
      }
      case FrameKind::reply: {
        const bool cancelled = frame.id() == recorded::flow_cancelled;
        heard.until(cancelled ? "a cancellation" : "a request", [&](const Heard& h) {
          return h.has(cancelled ? FrameKind::cancel : FrameKind::request, frame.id());
        });
        break;
      }
      default:
        break;
    }
    ASSERT_TRUE(server.send(frame.bytes));
    if (ends_stream(frame)) break;  // the client may not send a pull after the last item
  }
  EXPECT_EQ(credits, recorded::flow_credit) << "what was recorded";
  const auto got = answers.take();
  EXPECT_EQ(got.notes, recorded::flow_credit);
  EXPECT_EQ(got.items, recorded::flow_items);
  EXPECT_EQ(client.counts().lanes_made, has_lanes(says) ? 1U : 0U);
}

}  // namespace
}  // namespace weft::rpc::flow_test
