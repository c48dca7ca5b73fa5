// One suite for every backend of Store, each seen through two handles of one store, as two agents see it;
// then what is particular to one backend. tests/rpc/store_process_test.cc has the file store between
// processes.
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/store/file_store.h>
#include <weft/rpc/store/memory_store.h>
#include <weft/rpc/store/remote_store.h>
#include <weft/rpc/store/store_service.h>
#include <weft/rpc/store/store_table.h>
#include <weft/rpc/transport/in_process.h>

#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace weft::rpc {
namespace {

using namespace std::chrono_literals;

constexpr CallOptions bounded{.deadline = 20s};  // a test that would hang fails instead

template <class T>
ErrorKind kind_of(Future<T> future) {
  try {
    (void)future.get();
  } catch (const Error& error) {
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::internal;
}

// A file that no other test uses, gone at the end.
class TemporaryFile {
 public:
  TemporaryFile() {
    const int file = ::mkstemp(path_.data());
    ::close(file);
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = (std::filesystem::temp_directory_path() / "weft-store-XXXXXX").string();
};

struct Backend {
  virtual ~Backend() = default;
  std::shared_ptr<Store> mine, theirs;
};

struct MemoryBackend : Backend {
  MemoryBackend() { mine = theirs = std::make_shared<MemoryStore>(loop); }
  ~MemoryBackend() override {
    mine = theirs = nullptr;
    loop->stop();
  }
  std::shared_ptr<AsioLoop> loop = std::make_shared<AsioLoop>();
};

// A server and two clients.
struct RemoteBackend : Backend {
  RemoteBackend(const std::string& address, std::shared_ptr<InProcess> network = nullptr)
      : server({.name = "server", .listen = {address}, .handler_threads = 1, .in_process = network}),
        memory(std::make_shared<MemoryStore>(server.core()->pick_loop())) {
    serve_store(*server.core(), memory);
    for (const char* name : {"mine", "theirs"})
      clients.push_back(std::make_unique<Agent>(AgentOptions{.name = name, .in_process = network}));
    mine = std::make_shared<RemoteStore>(clients[0]->connect(server.addresses().front()));
    theirs = std::make_shared<RemoteStore>(clients[1]->connect(server.addresses().front()));
  }
  Agent server;
  std::shared_ptr<MemoryStore> memory;
  std::vector<std::unique_ptr<Agent>> clients;
};

struct FileBackend : Backend {
  FileBackend() {
    mine = std::make_shared<FileStore>(file.path(), FileStoreOptions{.interval = 2ms});
    theirs = std::make_shared<FileStore>(file.path(), FileStoreOptions{.interval = 2ms});
  }
  TemporaryFile file;
};

struct Kind {
  const char* name;
  std::unique_ptr<Backend> (*make)();
};

const Kind kinds[] = {
    {"memory", []() -> std::unique_ptr<Backend> { return std::make_unique<MemoryBackend>(); }},
    {"in_process",
     []() -> std::unique_ptr<Backend> {
       return std::make_unique<RemoteBackend>("inproc://server", std::make_shared<InProcess>());
     }},
    {"tcp",
     []() -> std::unique_ptr<Backend> { return std::make_unique<RemoteBackend>("tcp://127.0.0.1:0"); }},
    {"file", []() -> std::unique_ptr<Backend> { return std::make_unique<FileBackend>(); }},
};

class StoreConformance : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().make();
  Store& mine_ = *backend_->mine;
  Store& theirs_ = *backend_->theirs;
};

INSTANTIATE_TEST_SUITE_P(Stores, StoreConformance, testing::ValuesIn(kinds),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(StoreConformance, GivesBackWhatWasSet) {
  mine_.set("key", "value").get();
  EXPECT_EQ(theirs_.get("key").get(), "value");
  mine_.set("key", "other").get();
  EXPECT_EQ(theirs_.try_get("key").get(), "other");
  EXPECT_EQ(theirs_.try_get("no such key").get(), std::nullopt);
}

TEST_P(StoreConformance, ValuesHoldAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 100'000; ++i) bytes += static_cast<char>(i % 251);
  mine_.set("bytes", bytes).get();
  EXPECT_EQ(theirs_.get("bytes").get(), bytes);
  mine_.set("empty", "").get();
  EXPECT_EQ(theirs_.try_get("empty").get(), "");
  mine_.set("nul", std::string("a\0b", 3)).get();
  EXPECT_EQ(theirs_.list("nul").get().entries.at("nul"), std::string("a\0b", 3));
}

TEST_P(StoreConformance, GetWaitsForTheKey) {
  auto first = theirs_.get("late", bounded);
  auto second = theirs_.get("late", bounded);
  mine_.set("other", "x").get();
  EXPECT_FALSE(first.ready());
  mine_.set("late", "here").get();
  EXPECT_EQ(first.get(), "here");
  EXPECT_EQ(second.get(), "here");
}

TEST_P(StoreConformance, AddCountsAcrossClients) {
  EXPECT_EQ(mine_.add("count", 5).get(), 5);
  EXPECT_EQ(theirs_.add("count", -7).get(), -2);
  EXPECT_EQ(mine_.try_get("count").get(), "-2");
  std::vector<std::thread> threads;
  for (Store* store : {&mine_, &theirs_})
    threads.emplace_back([store] {
      std::vector<Future<std::int64_t>> sums;
      for (int i = 0; i < 100; ++i) sums.push_back(store->add("sum", 1));
      for (auto& sum : sums) sum.get();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(mine_.add("sum", 0).get(), 200);
}

TEST_P(StoreConformance, AddRefusesWhatIsNoNumber) {
  mine_.set("text", "12 monkeys").get();
  EXPECT_EQ(kind_of(theirs_.add("text", 1)), ErrorKind::invalid_argument);
  mine_.set("large", "9223372036854775807").get();
  EXPECT_EQ(kind_of(theirs_.add("large", 1)), ErrorKind::invalid_argument);
  EXPECT_EQ(theirs_.try_get("large").get(), "9223372036854775807");
}

TEST_P(StoreConformance, CompareSetStoresOnlyWhereTheKeyHoldsWhatIsExpected) {
  auto exchange = mine_.compare_set("key", std::nullopt, "a").get();
  EXPECT_TRUE(exchange.stored);
  EXPECT_EQ(exchange.actual, "a");
  exchange = theirs_.compare_set("key", std::nullopt, "b").get();
  EXPECT_FALSE(exchange.stored);
  EXPECT_EQ(exchange.actual, "a");
  exchange = theirs_.compare_set("key", "a", "c").get();
  EXPECT_TRUE(exchange.stored);
  EXPECT_EQ(exchange.actual, "c");
  exchange = theirs_.compare_set("absent", "a", "c").get();
  EXPECT_FALSE(exchange.stored);
  EXPECT_EQ(exchange.actual, std::nullopt);
  EXPECT_EQ(mine_.get("key").get(), "c");
}

TEST_P(StoreConformance, CompareSetHasOneWinner) {
  std::vector<Future<StoreExchange>> exchanges;
  for (int i = 0; i < 10; ++i) {
    exchanges.push_back(mine_.compare_set("prize", std::nullopt, "mine" + std::to_string(i)));
    exchanges.push_back(theirs_.compare_set("prize", std::nullopt, "theirs" + std::to_string(i)));
  }
  int winners = 0;
  const std::string prize = mine_.get("prize").get();
  for (auto& future : exchanges) {
    const auto exchange = future.get();
    winners += exchange.stored ? 1 : 0;
    EXPECT_EQ(exchange.actual, prize);
  }
  EXPECT_EQ(winners, 1);
}

TEST_P(StoreConformance, WaitEndsWhenAllKeysExist) {
  theirs_.wait({}, bounded).get();
  auto wait = theirs_.wait({"a", "b", "c"}, bounded);
  mine_.set("c", "").get();
  mine_.set("a", "").get();
  mine_.remove("c").get();
  mine_.set("b", "").get();
  theirs_.try_get("b").get();
  EXPECT_FALSE(wait.ready());
  mine_.set("c", "").get();
  wait.get();
}

TEST_P(StoreConformance, RemoveSaysWhetherTheKeyExisted) {
  mine_.set("key", "old").get();
  EXPECT_TRUE(theirs_.remove("key").get());
  EXPECT_FALSE(mine_.remove("key").get());
  EXPECT_EQ(mine_.try_get("key").get(), std::nullopt);
  auto value = mine_.get("key", bounded);
  theirs_.set("key", "new").get();
  EXPECT_EQ(value.get(), "new");
}

TEST_P(StoreConformance, ListGivesTheKeysWithAPrefix) {
  EXPECT_EQ(theirs_.list("").get().version, 0U);
  for (const char* key : {"a", "a/1", "a/2", "a0", "b/1"}) mine_.set(key, key).get();
  const auto view = theirs_.list("a/").get();
  EXPECT_EQ(view.entries, (std::map<std::string, std::string>{{"a/1", "a/1"}, {"a/2", "a/2"}}));
  EXPECT_EQ(view.version, 5U);
  EXPECT_EQ(mine_.list("").get().entries.size(), 5U);
}

TEST_P(StoreConformance, WatchSeesWhatChangedAfterAVersion) {
  mine_.set("a/1", "x").get();
  const auto before = theirs_.list("a/").get();
  EXPECT_EQ(theirs_.watch("a/", 0, bounded).get().entries, before.entries);  // at once
  auto change = theirs_.watch("a/", before.version, bounded);
  mine_.set("b/1", "elsewhere").get();
  mine_.set("a/2", "y").get();
  auto view = change.get();
  EXPECT_EQ(view.entries.size(), 2U);
  EXPECT_GT(view.version, before.version);
  // Changed since, before anybody watched: a value that was overwritten, a key that was removed.
  mine_.set("a/1", "z").get();
  view = theirs_.watch("a/", view.version, bounded).get();
  EXPECT_EQ(view.entries.at("a/1"), "z");
  mine_.remove("a/2").get();
  view = theirs_.watch("a/", view.version, bounded).get();
  EXPECT_EQ(view.entries.size(), 1U);
  // And while somebody does.
  change = theirs_.watch("a/", view.version, bounded);
  mine_.remove("a/1").get();
  EXPECT_EQ(change.get().entries.size(), 0U);
}

TEST_P(StoreConformance, AWaitIsCancelled) {
  auto get = mine_.get("never", bounded);
  auto wait = mine_.wait({"never"}, bounded);
  auto watch = mine_.watch("never", 0, bounded);
  get.cancel();
  get.cancel();
  wait.cancel();
  watch.cancel();
  EXPECT_EQ(kind_of(std::move(get)), ErrorKind::cancelled);
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::cancelled);
  EXPECT_EQ(kind_of(std::move(watch)), ErrorKind::cancelled);
  theirs_.set("never", "after all").get();
  EXPECT_EQ(mine_.get("never").get(), "after all");
}

TEST_P(StoreConformance, AWaitEndsAtItsDeadline) {
  const auto begun = Clock::now();
  EXPECT_EQ(kind_of(mine_.get("never", {.deadline = 30ms})), ErrorKind::deadline_exceeded);
  EXPECT_EQ(kind_of(mine_.wait({"never"}, {.deadline = 1ms})), ErrorKind::deadline_exceeded);
  EXPECT_EQ(kind_of(mine_.watch("never", 0, {.deadline = 1ms})), ErrorKind::deadline_exceeded);
  EXPECT_GE(Clock::now() - begun, 30ms);
  EXPECT_LT(Clock::now() - begun, 10s);
}

TEST_P(StoreConformance, WhatIsChainedMayUseTheStore) {
  Promise<std::string> promise;
  auto future = promise.future();
  mine_.get("first", bounded).then([&, promise = std::move(promise)](Result<std::string>&&) mutable {
    mine_.get("second", bounded).then([promise = std::move(promise)](Result<std::string>&& second) mutable {
      promise.complete(std::move(second));
    });
  });
  theirs_.set("second", "value").get();
  theirs_.set("first", "").get();
  EXPECT_EQ(future.get(), "value");
}

// --- The table ---

TEST(StoreTable, ForgetsOldRemovalsOnTheSafeSide) {
  StoreTable table;
  StoreTable::Jobs jobs;
  table.set("a/0", "", jobs);
  table.remove("a/0", jobs);
  table.set("z", "", jobs);
  EXPECT_TRUE(table.changed("a/", 1));
  EXPECT_FALSE(table.changed("b/", 1));
  for (int i = 0; i < 1100; ++i) {
    table.set("c/" + std::to_string(i), "", jobs);
    table.remove("c/" + std::to_string(i), jobs);
  }
  EXPECT_TRUE(table.changed("a/", 1));  // that removal is forgotten, so everything may have changed
  EXPECT_FALSE(table.changed("a/", table.view("").version - 1));
}

// --- In memory and served ---

TEST(MemoryStore, CloseEndsItsWaits) {
  auto loop = std::make_shared<AsioLoop>();
  MemoryStore store(loop);
  auto wait = store.get("never");
  EXPECT_EQ(store.waiting(), 1U);
  store.close();
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::shut_down);
  EXPECT_EQ(kind_of(store.get("never")), ErrorKind::shut_down);
  store.set("key", "value").get();
  EXPECT_EQ(store.try_get("key").get(), "value");
  EXPECT_EQ(store.waiting(), 0U);
  loop->stop();
}

TEST(MemoryStore, ACancelledWaitLeavesNothingBehind) {
  auto loop = std::make_shared<AsioLoop>();
  MemoryStore store(loop);
  std::vector<Future<std::string>> waits;
  for (int i = 0; i < 100; ++i) waits.push_back(store.get("never"));
  EXPECT_EQ(store.waiting(), 100U);
  for (auto& wait : waits) wait.cancel();
  EXPECT_EQ(store.waiting(), 0U);
  EXPECT_EQ(kind_of(store.get("never", {.deadline = 1ms})), ErrorKind::deadline_exceeded);
  loop->stop();
  EXPECT_EQ(store.waiting(), 0U);
}

// Waits until what a peer does has been seen here.
template <class Condition>
bool eventually(Condition condition) {
  for (const auto until = Clock::now() + 20s; Clock::now() < until; std::this_thread::yield())
    if (condition()) return true;
  return false;
}

TEST(StoreService, AClientsDeathDropsItsWaits) {
  for (const bool in_process : {true, false}) {
    auto network = in_process ? std::make_shared<InProcess>() : nullptr;
    RemoteBackend backend(in_process ? "inproc://server" : "tcp://127.0.0.1:0", network);
    std::vector<Future<std::string>> waits;
    for (int i = 0; i < 50; ++i) waits.push_back(backend.mine->get("never"));
    auto theirs = backend.theirs->get("never");
    ASSERT_TRUE(eventually([&] { return backend.memory->waiting() == 51; }));
    backend.clients[0].reset();
    EXPECT_TRUE(eventually([&] { return backend.memory->waiting() == 1; }));
    for (auto& wait : waits) EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::shut_down);
    theirs.cancel();
    EXPECT_TRUE(eventually([&] { return backend.memory->waiting() == 0; }));
  }
}

TEST(StoreService, AWaitEndsWithItsServer) {
  auto backend = std::make_unique<RemoteBackend>("tcp://127.0.0.1:0");
  auto wait = backend->mine->get("never");
  ASSERT_TRUE(eventually([&] { return backend->memory->waiting() == 1; }));
  backend->server.shut_down();
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::peer_lost);
}

int answer() { return 42; }
using Answer = Function<"answer", &answer>;

TEST(StoreService, WaitsHoldNoHandlerThread) {
  RemoteBackend backend("tcp://127.0.0.1:0");  // with one handler thread
  backend.server.serve<Answer>();
  std::vector<Future<std::string>> waits;
  for (int i = 0; i < 20; ++i) waits.push_back(backend.mine->get("key", bounded));
  EXPECT_EQ(backend.clients[0]->connect(backend.server.addresses().front()).call<Answer>().get(), 42);
  backend.theirs->set("key", "value").get();
  for (auto& wait : waits) EXPECT_EQ(wait.get(), "value");
}

// --- In a file ---

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(FileStore, SurvivesAWriterThatDiedHalfWay) {
  const TemporaryFile file;
  {
    FileStore store(file.path());
    store.set("a", "1").get();
    store.set("b", "2").get();
  }
  const std::string whole = contents(file.path());
  const std::size_t first = whole.find('b') - 13;  // where the second record begins
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    FileStore store(file.path());
    EXPECT_EQ(store.try_get("a").get(), size >= first ? std::optional<std::string>("1") : std::nullopt)
        << size;
    EXPECT_EQ(store.try_get("b").get(), std::nullopt) << size;
    store.set("c", "3").get();
    FileStore other(file.path());
    EXPECT_EQ(other.try_get("c").get(), "3") << size;
    EXPECT_EQ(other.list("").get().version, size >= first ? 2U : 1U) << size;
  }
}

TEST(FileStore, RefusesADamagedFile) {
  const TemporaryFile file;
  {
    FileStore store(file.path());
    store.set("a", "1").get();
    store.set("b", "2").get();
  }
  std::string bytes = contents(file.path());
  bytes[bytes.find('a')] = 'x';
  std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << bytes;
  EXPECT_EQ(kind_of(FileStore(file.path()).try_get("b")), ErrorKind::protocol_error);
  std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << "somebody's letters";
  FileStore store(file.path());
  EXPECT_EQ(kind_of(store.set("a", "1")), ErrorKind::protocol_error);
  EXPECT_EQ(kind_of(store.get("a")), ErrorKind::protocol_error);
  EXPECT_EQ(contents(file.path()), "somebody's letters");
}

TEST(FileStore, AStoreThatIsCutShortUnderItsReaderFailsItsWaits) {
  const TemporaryFile file;
  FileStore store(file.path(), {.interval = 1ms});
  store.set("a", "1").get();
  auto wait = store.get("never", bounded);
  std::filesystem::resize_file(file.path(), 3);
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::protocol_error);
}

TEST(FileStore, DoesNotHangOnAHeldLock) {
  const TemporaryFile file;
  const int other = ::open(file.path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  {
    FileStore impatient(file.path(), {.patience = 10ms});
    EXPECT_EQ(kind_of(impatient.set("a", "1")), ErrorKind::unavailable);
    FileStore patient(file.path());
    auto set = patient.set("a", "1");
    patient.close();  // ends, though the lock is held
    EXPECT_EQ(kind_of(std::move(set)), ErrorKind::shut_down);
    EXPECT_EQ(kind_of(patient.get("a")), ErrorKind::shut_down);
  }
  FileStore store(file.path());
  auto set = store.set("a", "2");
  ::flock(other, LOCK_UN);
  set.get();
  EXPECT_EQ(store.get("a").get(), "2");
  ::close(other);
}

TEST(FileStore, CloseEndsItsWaits) {
  const TemporaryFile file;
  auto store = std::make_unique<FileStore>(file.path());
  auto wait = store->get("never");
  auto watch = store->watch("", 0);
  store.reset();
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::shut_down);
  EXPECT_EQ(kind_of(std::move(watch)), ErrorKind::shut_down);
}

TEST(FileStore, MayBeDestroyedByWhatIsChainedToIt) {
  const TemporaryFile file;
  auto store = std::make_shared<FileStore>(file.path());
  Promise<void> promise;
  auto future = promise.future();
  Store& use = *store;
  use.set("a", "1").then(
      [store = std::move(store), promise = std::move(promise)](Result<void>&& set) mutable {
        store.reset();
        promise.complete(std::move(set));
      });
  future.get();
}

TEST(FileStore, SaysWhatIsWrongWithItsPath) {
  EXPECT_EQ(FileStore::path_of("file:///a/b"), "/a/b");
  for (const char* url : {"file://a/b", "file:///", "tcp://host:1", "/a/b"})
    EXPECT_THROW(FileStore::path_of(url), Error) << url;
  try {
    FileStore store("/no/such/folder/store");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::unavailable);
    EXPECT_STREQ(error.what(), "cannot open the store /no/such/folder/store: No such file or directory");
  }
}

TEST(FileStore, DiscardRemovesTheName) {
  const TemporaryFile file;
  FileStore store(file.path());
  store.set("a", "1").get();
  store.discard();
  EXPECT_FALSE(std::filesystem::exists(file.path()));
  EXPECT_EQ(store.get("a").get(), "1");  // who has it open goes on
}

}  // namespace
}  // namespace weft::rpc
