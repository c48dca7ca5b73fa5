#include <weft/parallel/collectives/flight/flight_dump.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/parallel/collectives/flight/flight_job.h"
#include "tests/support/torch_python.h"

namespace weft::collectives::testing {
namespace flight_dump_test {

namespace fs = std::filesystem;

struct Folder {
  fs::path path() const { return made.path(); }
  std::vector<std::string> files() const {
    std::vector<std::string> files;
    for (const auto& file : fs::directory_iterator(path())) files.push_back(file.path().filename().string());
    std::sort(files.begin(), files.end());
    return files;
  }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path() / name) << text; }
  const test::TemporaryFolder made;
};

FlightDump dump_of_all() {
  FlightJob job(3);
  job.does(1, "all_reduce(sum, float32[4, 8])", "train.cc:12");
  FlightEntry& failed = job.does(1, "barrier()", "", FlightState::failed);
  failed.error = "rank 2 (\"worker2\")\nwas lost";
  failed.waits_for = {0, 2};
  failed.bytes = ~std::uint64_t{0};
  job.gives(1, "split()", "train.cc:13", FlightState::done);
  job.message(1, FlightKind::recv, -1, "float32[4]", "train.cc:14", FlightState::begun, ~std::uint64_t{0});
  FlightDump dump = job.dump(1);
  dump.origin = 0xfedc'ba98'7654'3210;
  dump.error = "peer_lost";
  dump.records.dropped = 5;
  return dump;
}

void expect_same(const FlightDump& a, const FlightDump& b) {
  EXPECT_EQ(json_of(a), json_of(b));
  EXPECT_EQ(a.origin, b.origin);
  EXPECT_EQ(a.members, b.members);
  EXPECT_EQ(a.records.begun, b.records.begun);
  ASSERT_EQ(a.records.entries.size(), b.records.entries.size());
  for (std::size_t i = 0; i < a.records.entries.size(); ++i) {
    const FlightEntry &x = a.records.entries[i], &y = b.records.entries[i];
    EXPECT_EQ(x.what_and_where(), y.what_and_where());
    EXPECT_EQ(x.state, y.state);
    EXPECT_EQ(x.bytes, y.bytes);
    EXPECT_EQ(x.begun, y.begun);
    EXPECT_EQ(x.ended, y.ended);
    EXPECT_EQ(x.error, y.error);
    EXPECT_EQ(x.waits_for, y.waits_for);
  }
}

// The format is read by later versions and by other programs: this text stays as it is.
TEST(FlightDump, HasTheDocumentedJson) {
  EXPECT_EQ(
      json_of(dump_of_all()),
      R"j({"format":"weft.flight","version":1,"group":"world","origin":"fedcba9876543210","number":1,"rank":1,)j"
      R"j("members":["worker0","worker1","worker2"],"host":"host","pid":101,"error":"peer_lost",)j"
      R"j("taken":100000000000,"begun":2,"begun_values":1,"dropped":5,)j"
      "\n\"entries\":[\n"
      R"j({"number":0,"kind":"collective","state":"done","sequence":0,"text":"all_reduce(sum, float32[4, 8])",)j"
      R"j("site":"train.cc:12","bytes":0,"begun":1000000000,"moved":1100000000,"ended":1200000000},)j"
      "\n"
      R"j({"number":1,"kind":"collective","state":"failed","sequence":1,"text":"barrier()","site":"",)j"
      R"j("bytes":18446744073709551615,"begun":2000000000,"moved":2100000000,"ended":2200000000,)j"
      R"j("error":"rank 2 (\"worker2\")\nwas lost","waits_for":[0,2]},)j"
      "\n"
      R"j({"number":2,"kind":"values","state":"done","sequence":0,"text":"split()","site":"train.cc:13",)j"
      R"j("bytes":0,"begun":3000000000,"moved":3100000000,"ended":3200000000},)j"
      "\n"
      R"j({"number":3,"kind":"recv","state":"begun","peer":-1,"tag":18446744073709551615,"text":"float32[4]",)j"
      R"j("site":"train.cc:14","bytes":0,"begun":4000000000,"moved":0,"ended":0})j"
      "\n]}\n");
}

TEST(FlightDump, RoundTrips) {
  expect_same(flight_dump_of(json_of(dump_of_all())), dump_of_all());
  const FlightDump none = FlightJob(1).dump(0);
  expect_same(flight_dump_of(json_of(none)), none);
}

TEST(FlightDump, TextsThatAreNoUtf8AreReplaced) {
  FlightDump dump = dump_of_all();
  dump.error =
      "a\xff"
      "b";
  EXPECT_EQ(flight_dump_of(json_of(dump)).error,
            "a\xef\xbf\xbd"
            "b");
}

TEST(FlightDump, IsWrittenAtomicallyAndReadFromItsFolder) {
  const Folder folder;
  const fs::path inner = folder.path() / "job" / "flight";  // made
  FlightJob job(2, "a/b c");
  EXPECT_TRUE(write_flight_dump(inner, job.dump(0)).filename().string().starts_with("a_b_c."));
  write_flight_dump(inner, job.dump(1));
  job.dump(1).error = "later";
  write_flight_dump(inner, job.dump(1));
  FlightJob same_name(1, "a/b c");
  same_name.dump(0).number = 2;
  write_flight_dump(inner, same_name.dump(0));
  const FlightFolder read = read_flight_dumps(inner);
  EXPECT_TRUE(read.unreadable.empty());
  ASSERT_EQ(read.dumps.size(), 3U);  // and nothing temporary
  EXPECT_EQ(std::distance(fs::directory_iterator(inner), {}), 3);
  EXPECT_EQ(std::count_if(read.dumps.begin(), read.dumps.end(),
                          [](const FlightDump& dump) { return dump.error == "later"; }),
            1);
}

TEST(FlightDump, ReportsWhyAFolderOrAFileIsRefused) {
  const Folder folder;
  write_flight_dump(folder.path(), dump_of_all());
  folder.write("notes.txt", "not ours");
  folder.write("world.rank7.json", json_of(dump_of_all()).substr(0, 100));
  const FlightFolder read = read_flight_dumps(folder.path());
  EXPECT_EQ(read.dumps.size(), 1U);
  ASSERT_EQ(read.unreadable.size(), 1U);
  EXPECT_EQ(read.unreadable[0],
            "world.rank7.json: malformed dump of a flight recorder: it is not JSON, or has been cut off");
  EXPECT_THROW(read_flight_dumps(folder.path() / "nowhere"), rpc::Error);
  EXPECT_THROW(write_flight_dump(folder.path() / "notes.txt" / "x", dump_of_all()), rpc::Error);
  const std::vector<std::string> before = folder.files();
  fs::create_directories(folder.path() / "taken");
  FlightDump taken = dump_of_all();
  taken.rank = 2;
  const fs::path path = write_flight_dump(folder.path() / "taken", taken);
  fs::remove(path);
  fs::create_directories(path / "in the way");
  EXPECT_THROW(write_flight_dump(folder.path() / "taken", taken), rpc::Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path() / "taken"), {}), 1);  // nothing temporary
}

TEST(FlightDump, NamesThisProcessAndHost) {
  EXPECT_EQ(FlightDump::here().pid, ::getpid());
  EXPECT_FALSE(FlightDump::here().host.empty());
}

// A change of a valid dump, and the error that states it.
TEST(FlightDump, RefusesInvalidContents) {
  const struct {
    const char *from, *to, *why;
  } changes[] = {
      {"weft.flight", "other", "'format' is 'other', expected 'weft.flight'"},
      {"\"version\":1", "\"version\":2", "it is of version 2, this program reads 1"},
      {"\"rank\":1", "\"rank\":3", "'rank' is 3, expected an integer from 0 to 2"},
      {"\"rank\":1", "\"rank\":-1", "'rank' is -1, expected an integer from 0 to 2"},
      {"\"rank\":1", "\"rank\":4294967297", "'rank' is 4294967297, expected an integer from 0 to 2"},
      {"\"rank\":1", "\"rank\":1.5", "'rank' is 1.5, expected an integer from 0 to 2"},
      {"\"rank\":1", "\"rung\":1", "'rank' is missing"},
      {"\"origin\":\"f", "\"origin\":\"x", "'origin' is 'xedcba9876543210', expected 16 hexadecimal digits"},
      {"\"group\":\"world\"", "\"group\":7", "'group' is 7, expected a string"},
      {"\"worker0\"", "5", "a member is 5, expected a name"},
      {"\"begun\":2", "\"begun\":1", "'sequence' is 1, expected an integer from 0 to 0"},
      {"\"begun_values\":1", "\"begun_values\":0",
       "'begun_values' is 0, expected at least 1: the dump has an entry of kind values"},
      {"\"begun\":2", "\"begun\":18446744073709551615",
       "'begun' is 18446744073709551615, expected an integer from 0 to 9223372036854775808"},
      {"\"begun\":2", "\"begun\":0",
       "'begun' is 0, expected at least 1: the dump has an entry of kind collective"},
      {"\"state\":\"done\"", "\"state\":\"dine\"",
       "'state' is 'dine', expected one of begun, moving, done, failed"},
      {"\"kind\":\"recv\"", "\"kind\":\"get\"",
       "'kind' is 'get', expected one of collective, values, send, recv"},
      {"\"peer\":-1", "\"peer\":3", "'peer' is 3, expected an integer from -1 to 2"},
      {"\"waits_for\":[0,2]", "\"waits_for\":[0,3]", "'waits_for' is 3, expected an integer from 0 to 2"},
      {"\"taken\":100000000000", "\"taken\":9223372036854775807",
       "'taken' is 9223372036854775807, expected an integer from 0 to 4611686018427387904"},
      {"\"entries\":[", "\"entries\":[[],", "'kind' is missing"},
  };
  for (const auto& change : changes) {
    SCOPED_TRACE(change.to);
    std::string json = json_of(dump_of_all());
    const std::size_t at = json.find(change.from);
    ASSERT_NE(at, std::string::npos);
    json.replace(at, std::string_view(change.from).size(), change.to);
    try {
      flight_dump_of(json);
      FAIL();
    } catch (const rpc::Error& error) {
      EXPECT_EQ(error.kind(), rpc::ErrorKind::invalid_argument);
      EXPECT_STREQ(error.what(), (std::string("malformed dump of a flight recorder: ") + change.why).c_str());
    }
  }
}

// A truncated dump fails to parse. A dump with one changed byte parses or fails with an error.
TEST(FlightDump, DamagedTextsAreRefusedOrParsed) {
  const std::string json = json_of(dump_of_all());
  for (std::size_t i = 0; i + 2 < json.size(); ++i) {  // without the last brace
    EXPECT_THROW(flight_dump_of(std::string_view(json).substr(0, i)), rpc::Error);
    for (const char c : {'\0', '9', '"', '-', '[', '\xff'}) {
      std::string damaged = json;
      damaged[i] = c;
      try {
        json_of(flight_dump_of(damaged));
      } catch (const rpc::Error&) {
      }
    }
  }
}

}  // namespace flight_dump_test
}  // namespace weft::collectives::testing
