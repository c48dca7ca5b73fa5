#include "tools/weft/dash/picture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft::tool::picture_test {
namespace {

constexpr std::int64_t second = 1'000'000'000;

AgentSample agent(const std::string& name, std::uint64_t incarnation, double uptime) {
  AgentSample sample;
  sample.address = "tcp://host:" + std::to_string(incarnation);
  sample.stats.name = sample.calls.name = name;
  sample.stats.incarnation = sample.calls.incarnation = incarnation;
  sample.stats.uptime = uptime;
  return sample;
}

rpc::MemberRecord record(const std::string& name, std::uint64_t incarnation, std::size_t rank,
                         rpc::MemberState state = rpc::MemberState::joined) {
  rpc::MemberRecord record;
  record.name = name;
  record.incarnation = incarnation;
  record.rank = rank;
  record.addresses = {"tcp://host:" + std::to_string(incarnation)};
  record.state = state;
  return record;
}

JobSample sample(double time, std::vector<AgentSample> agents,
                 std::optional<std::vector<rpc::MemberRecord>> members = std::nullopt) {
  return {static_cast<std::int64_t>(time * second) + 100 * second, std::move(members), std::move(agents)};
}

// Returns "0 anna alive; 1 bert lost: why", in the order of the ranks.
std::string members_of(const Picture& picture) {
  std::string text;
  const PrintedJson json = picture.json();
  for (const auto& member : json["members"]) {
    text += text.empty() ? "" : "; ";
    if (!member["rank"].is_null()) text += std::to_string(member["rank"].get<int>()) + " ";
    text += member["name"].get<std::string>() + " " + member["state"].get<std::string>();
    if (const auto note = member["note"].get<std::string>(); !note.empty()) text += ": " + note;
  }
  return text;
}

TEST(Picture, OfNoAgents) {
  const PrintedJson json = Picture().json();
  for (const char* list :
       {"members", "rates", "gauges", "charts", "calls", "references", "groups", "timeline"})
    EXPECT_EQ(json[list], PrintedJson::array()) << list;
  EXPECT_EQ(json["time"], 0.0);
}

TEST(Picture, AMemberHasDataOfTheStoreAndOfTheAgent) {
  Picture picture;
  picture.add(sample(0, {agent("bert", 18'000'000'000'000'000'002U, 2.5)},
                     {{record("bert", 18'000'000'000'000'000'002U, 1), record("anna", 1, 0)}}));
  const PrintedJson json = picture.json();
  ASSERT_EQ(json["members"].size(), 2U);
  EXPECT_EQ(json["members"][0]["name"], "anna");
  EXPECT_TRUE(json["members"][0]["uptime"].is_null());
  const auto& bert = json["members"][1];
  EXPECT_EQ(bert["rank"], 1);
  EXPECT_EQ(bert["uptime"], 2.5);
  EXPECT_EQ(bert["incarnation"], "18000000000000000002");  // more digits than a double has
  EXPECT_EQ(bert["address"], "tcp://host:18000000000000000002");
}

TEST(Picture, AMemberIsLostIfItsRecordVanishesWithoutALeave) {
  Picture picture;
  const auto agents = [] {
    return std::vector{agent("anna", 1, 1), agent("bert", 2, 1), agent("carl", 3, 1)};
  };
  picture.add(sample(0, agents(), {{record("anna", 1, 0), record("bert", 2, 1), record("carl", 3, 2)}}));
  EXPECT_EQ(members_of(picture), "0 anna alive; 1 bert alive; 2 carl alive");
  picture.add(sample(1, {agent("anna", 1, 2)},
                     {{record("anna", 1, 0), record("carl", 3, 2, rpc::MemberState::left)}}));
  EXPECT_EQ(members_of(picture), "0 anna alive; 1 bert lost; 2 carl left");
  picture.add(
      sample(2, {agent("anna", 1, 3), agent("bert", 9, 0)}, {{record("anna", 1, 0), record("bert", 9, 1)}}));
  EXPECT_EQ(members_of(picture), "0 anna alive; 1 bert lost; 1 bert alive; 2 carl left");
}

TEST(Picture, AnAgentThatDoesNotAnswerIsShownWithTheReason) {
  AgentSample silent;
  silent.address = "tcp://host:2";
  silent.silent = "refused";
  Picture picture;
  picture.add(sample(0, {agent("anna", 1, 1), agent("bert", 2, 1)}));
  picture.add(sample(1, {agent("anna", 1, 2), silent}));
  EXPECT_EQ(members_of(picture), "anna alive; bert no answer: refused");
  picture.add(sample(2, {agent("anna", 1, 3), agent("bert", 2, 3)}));
  EXPECT_EQ(members_of(picture), "anna alive; bert alive");

  Picture of_strangers;  // it never replied, and its name is unknown
  of_strangers.add(sample(0, {silent}));
  EXPECT_EQ(members_of(of_strangers), " no answer: refused");
}

TEST(Picture, AnotherIncarnationReplacesTheLastOne) {
  AgentSample again = agent("anna", 2, 0);
  again.address = agent("anna", 1, 0).address;
  Picture picture;
  picture.add(sample(0, {agent("anna", 1, 1)}));
  picture.add(sample(1, {again}));
  EXPECT_EQ(members_of(picture), "anna lost; anna alive");
}

TEST(Picture, KeepsTheLatestHundredMembers) {
  Picture picture;
  for (int i = 1; i <= 150; ++i) picture.add(sample(i, {agent("w", static_cast<std::uint64_t>(i), 1)}));
  const PrintedJson json = picture.json();
  EXPECT_EQ(json["members"].size(), 100U);
  EXPECT_EQ(json["members"][0]["incarnation"], "51");
}

TEST(Picture, RatesUseTheClockOfTheAgent) {
  AgentSample before = agent("anna", 1, 10), after = agent("anna", 1, 12);
  before.stats.calls_served = 100;
  after.stats.calls_served = 150;
  after.stats.bytes_sent = 4096;
  after.stats.serving = 3;
  Picture picture;
  picture.add(sample(0, {before}));
  EXPECT_TRUE(picture.json()["rates"].empty());
  picture.add(sample(1, {after}));
  const PrintedJson json = picture.json();
  ASSERT_EQ(json["rates"].size(), 1U);
  EXPECT_EQ(json["rates"][0]["served"], 25.0);
  EXPECT_EQ(json["rates"][0]["sent"], 2048.0);
  EXPECT_EQ(json["rates"][0]["serving"], 3);
  EXPECT_EQ(json["charts"][2]["name"], "calls served per second");
  EXPECT_EQ(json["charts"][2]["lines"][0]["points"], (PrintedJson{{1.0, 25.0}}));
}

TEST(Picture, GaugesAreSeriesOfEachAgent) {
  Picture picture;
  for (int i = 0; i < 3; ++i) {
    AgentSample anna = agent("anna", 1, i), bert = agent("bert", 2, i);
    anna.stats.gauges = {{"loss", 1.0 / (1 + i)}, {"bad", std::nan("")}};
    bert.stats.gauges = {{"loss", 2}};
    picture.add(sample(i, {anna, bert}));
  }
  const PrintedJson json = picture.json();
  ASSERT_EQ(json["gauges"].size(), 2U);
  EXPECT_EQ(json["gauges"][0]["name"], "bad");
  EXPECT_EQ(json["gauges"][0]["lines"][0]["points"], PrintedJson::array());
  const auto& loss = json["gauges"][1];
  EXPECT_EQ(loss["name"], "loss");
  ASSERT_EQ(loss["lines"].size(), 2U);
  EXPECT_EQ(loss["lines"][0]["agent"], "anna");
  EXPECT_EQ(loss["lines"][0]["points"], (PrintedJson{{0.0, 1.0}, {1.0, 0.5}, {2.0, 1.0 / 3}}));
}

TEST(Picture, ASeriesIsThinnedAndKeepsItsTimeRange) {
  Series series;
  for (int i = 0; i < 10'000; ++i) series.add(i, 2 * i);
  const PrintedJson points = series.json();
  EXPECT_GE(points.size(), 150U);
  EXPECT_LT(points.size(), 300U);
  EXPECT_EQ(points.front()[0], 0.0);
  EXPECT_GE(points.back()[0], 9'900.0);
  const double step = points[1][0].get<double>();
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i][0], step * static_cast<double>(i));
    EXPECT_EQ(points[i][1], 2 * step * static_cast<double>(i));
  }
}

TEST(Picture, TheNumberOfNamesIsLimited) {
  Picture picture;
  for (int i = 0; i < 500; ++i) {
    AgentSample anna = agent("anna", 1, i);
    anna.stats.gauges = {{"g" + std::to_string(i), 1}};
    picture.add(sample(i, {anna}));
  }
  EXPECT_EQ(picture.json()["gauges"].size(), 200U);
  EXPECT_EQ(picture.json()["gauges"][0]["name"], "g0");
}

rpc::Span span(const std::string& name, double begin, double end) {
  rpc::Span span;
  span.name = name;
  span.begin = static_cast<std::int64_t>(begin * second) + 100 * second;
  span.end = static_cast<std::int64_t>(end * second) + 100 * second;
  return span;
}

TEST(Picture, SpansOfTheLastTenSecondsAreInLanesByTheLocalClock) {
  AgentSample anna = agent("anna", 1, 1);
  anna.spans =
      rpc::AgentSpans{"anna", 1, {}, 2, {span("old", 0, 1), span("a", 18, 19), span("b", 18.5, 19.5)}};
  Picture picture;
  picture.add(sample(20, {anna}));
  anna.spans = rpc::AgentSpans{"anna", 1, {}, 0, {span("c", 19.5, 20.5)}};
  picture.add(sample(21, {anna}));
  PrintedJson json = picture.json();
  ASSERT_EQ(json["timeline"].size(), 1U);
  EXPECT_EQ(json["timeline"][0]["dropped"], 2);
  EXPECT_EQ(json["timeline"][0]["lanes"], 2);
  EXPECT_EQ(json["timeline"][0]["spans"], (PrintedJson{{0, -3.0, -2.0, "a", "made", ""},
                                                       {1, -2.5, -1.5, "b", "made", ""},
                                                       {0, -1.5, -0.5, "c", "made", ""}}));
  picture.add(sample(40, {agent("anna", 1, 1)}));
  EXPECT_TRUE(picture.json()["timeline"].empty());

  anna.spans = rpc::AgentSpans{"anna", 1, {.ahead = -20 * second, .uncertain = 0}, 0, {span("a", 19, 20)}};
  picture.add(sample(41, {anna}));
  json = picture.json();
  EXPECT_EQ(json["timeline"][0]["spans"][0][2], -1.0);
}

TEST(Picture, OperationsOfGroupsByRank) {
  collectives::FlightDump dump;
  dump.group = "world";
  dump.rank = 1;
  dump.members = {"anna", "bert"};
  dump.records.taken = 5 * second;
  dump.records.begun = 4;
  collectives::FlightEntry entry;
  entry.text = "all_reduce(sum, float32[4])";
  entry.sequence = 3;
  entry.begun = 3 * second;
  entry.site = "train.cc:9";
  dump.records.entries = {entry};
  AgentSample bert = agent("bert", 2, 1);
  bert.groups = {dump};
  Picture picture;
  picture.add(sample(0, {agent("anna", 1, 1), bert}));
  const PrintedJson json = picture.json();
  ASSERT_EQ(json["groups"].size(), 1U);
  EXPECT_EQ(json["groups"][0]["size"], 2);
  ASSERT_EQ(json["groups"][0]["ranks"].size(), 1U);
  const auto& rank = json["groups"][0]["ranks"][0];
  EXPECT_EQ(rank["member"], "bert");
  EXPECT_EQ(rank["begun"], 4);
  EXPECT_EQ(rank["operations"][0]["text"], "#3 all_reduce(sum, float32[4])");
  EXPECT_EQ(rank["operations"][0]["state"], "begun");
  EXPECT_EQ(rank["operations"][0]["age"], 2.0);
}

TEST(Picture, CallsInFlightFollowTheCallsThatWaitForThem) {
  AgentSample anna = agent("anna", 1, 1), bert = agent("bert", 2, 1);
  bert.calls.served = {{{"anna", 1, 7}, "desk.ask", 3, "running", "handlers", 0}};
  bert.calls.made = {{4, "desk.sign", "carl", 1, "sent", -1, {"anna", 1, 7}}};
  Picture picture;
  picture.add(sample(0, {anna, bert}));
  const PrintedJson json = picture.json();
  ASSERT_EQ(json["calls"].size(), 2U);
  EXPECT_TRUE(json["calls"][0]["text"].get<std::string>().starts_with("anna#7 desk.ask on bert, 3"));
  EXPECT_EQ(json["calls"][0]["depth"], 0);
  EXPECT_TRUE(json["calls"][1]["text"].get<std::string>().starts_with("bert#4 desk.sign on carl"));
  EXPECT_EQ(json["calls"][1]["depth"], 1);
}

TEST(Picture, ObjectsBehindRRefs) {
  AgentSample anna = agent("anna", 1, 1);
  anna.references = rref::ReferenceListing{"anna", {.objects = 1}, {}, 0};
  anna.references->objects = {{"1.2", "desk", "live", std::nullopt, 1, {"bert"}, 2.5, ""}};
  Picture picture;
  picture.add(sample(0, {anna, agent("bert", 2, 1)}));
  const PrintedJson json = picture.json();
  ASSERT_EQ(json["references"].size(), 1U);
  EXPECT_EQ(json["references"][0]["objects"], 1);
  EXPECT_EQ(json["references"][0]["list"][0]["type"], "desk");
  EXPECT_TRUE(json["references"][0]["list"][0]["bytes"].is_null());
  EXPECT_EQ(json["references"][0]["list"][0]["users"], PrintedJson{"bert"});
}

// Peers choose these names. For any name, the data is one line of valid JSON.
TEST(Picture, AnyNameIsValidJson) {
  Picture picture;
  picture.add(sample(0, {agent("</script>\n\xff\"", 1, std::numeric_limits<double>::infinity())}));
  const std::string text = on_one_line(picture.json());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(parse_json(text)["members"][0]["name"].get<std::string>().substr(0, 10), "</script>\n");
}

}  // namespace
}  // namespace weft::tool::picture_test
