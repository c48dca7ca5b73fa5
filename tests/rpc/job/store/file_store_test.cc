// tests/rpc/job/store/file_store_process_test.cc has the file store between processes.
#include <weft/rpc/job/store/file_store.h>

#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/store_suite.h"

namespace weft::test {

// A file that no other test uses. It is removed at the end.
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

struct FileBackend : StoreBackend {
  FileBackend() {
    mine = open();
    theirs = open();
  }
  std::shared_ptr<rpc::FileStore> open() {
    stores.push_back(std::make_shared<rpc::FileStore>(
        file.path(), rpc::FileStoreOptions{.interval = std::chrono::milliseconds{2}}));
    return stores.back();
  }
  std::shared_ptr<rpc::Store> client() override {
    open();
    return std::exchange(stores.back(), nullptr);
  }
  void end() override {  // closes the store in this process
    for (const auto& store : stores)
      if (store != nullptr) store->close();
  }
  TemporaryFile file;
  std::vector<std::shared_ptr<rpc::FileStore>> stores;
};

INSTANTIATE_TYPED_TEST_SUITE_P(File, StoreSuite, FileBackend);

}  // namespace weft::test

namespace weft::rpc::file_store_test {
namespace {

using namespace std::chrono_literals;
using test::TemporaryFile;

constexpr CallOptions bounded{.timeout = 40s};  // a test fails instead of hanging

template <class T>
ErrorKind kind_of(Future<T> future) {
  return test::kind_of([&] { return test::got(std::move(future)), 0; }).value_or(ErrorKind::internal);
}

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
  const std::size_t first = whole.find('b') - 21;  // the start of the second record
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    FileStore store(file.path());
    EXPECT_EQ(store.try_get("a").get(), size >= first ? std::optional<std::string>("1") : std::nullopt)
        << size;
    EXPECT_EQ(store.try_get("b").get(), std::nullopt) << size;
    store.set("c", "3").get();
    FileStore other(file.path());
    EXPECT_EQ(other.try_get("c").get(), "3") << size;
    EXPECT_EQ(other.list("").get().version, size >= first ? 3U : 2U) << size;
  }
}

TEST(FileStore, SurvivesAWriterThatDiedHalfWayThroughALease) {
  const TemporaryFile file;
  {
    FileStore store(file.path());
    const StoreLease lease = store.grant(1h).get();
    store.set("a", "1", lease.id).get();
    store.renew(lease.id).get();
    store.revoke(lease.id).get();
  }
  const std::string whole = contents(file.path());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << whole.substr(0, size);
    FileStore store(file.path());
    const bool set = store.try_get("a").get().has_value();
    EXPECT_EQ(set, size >= whole.find('a') + 2) << size;
    const StoreLease lease = store.grant(1h).get();
    store.set("c", "3", lease.id).get();
    FileStore other(file.path());
    EXPECT_EQ(other.try_get("c").get(), "3") << size;
    other.revoke(lease.id).get();
    EXPECT_EQ(store.list("").get().entries.size(), set ? 1U : 0U) << size;
  }
  std::ofstream(file.path(), std::ios::binary | std::ios::trunc) << whole;
  EXPECT_EQ(FileStore(file.path()).try_get("a").get(), std::nullopt);
}

TEST(FileStore, RenewalsDoNotGrowTheFile) {
  const TemporaryFile file;
  FileStore store(file.path());
  const StoreLease lease = store.grant(1h).get();
  const std::string before = contents(file.path());
  for (int i = 0; i < 100; ++i) store.renew(lease.id).get();
  const std::string after = contents(file.path());
  EXPECT_EQ(after.size(), before.size());
  EXPECT_NE(after, before);
  FileStore other(file.path());  // a second store reads the file without an error
  other.renew(lease.id).get();
  other.set("key", "", lease.id).get();
  EXPECT_EQ(store.get("key").get(), "");
}

TEST(FileStore, AProcessThatOpensTheFileLaterExpiresLeasesOfDeadProcesses) {
  const TemporaryFile file;
  {
    FileStore dead(file.path());
    dead.set("leased", "", dead.grant(1s).get().id).get();
  }
  FileStore store(file.path(), {.interval = 2ms});
  for (std::uint64_t version = 0; store.try_get("leased").get();)
    version = store.watch("leased", version, bounded).get().version;
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

TEST(FileStore, ATruncatedFileFailsTheWaitsOfItsReaders) {
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
    FileStore impatient(file.path(), {.timeout = 10ms});
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

TEST(FileStore, CloseFailsItsWaits) {
  const TemporaryFile file;
  auto store = std::make_unique<FileStore>(file.path());
  auto wait = store->get("never");
  auto watch = store->watch("", store->list("").get().version);
  store.reset();
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::shut_down);
  EXPECT_EQ(kind_of(std::move(watch)), ErrorKind::shut_down);
}

TEST(FileStore, MayBeDestroyedByAContinuation) {
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

TEST(FileStore, ReportsErrorsOfItsPath) {
  EXPECT_EQ(FileStore::path_of("file:///a/b"), "/a/b");
  for (const char* url : {"file://a/b", "file:///", "tcp://host:1", "/a/b"})
    EXPECT_THROW(FileStore::path_of(url), Error) << url;
  test::expect_error([] { FileStore store("/no/such/folder/store"); }, ErrorKind::unavailable,
                     test::whole("cannot open the store /no/such/folder/store: No such file or directory"));
}

TEST(FileStore, DiscardRemovesTheName) {
  const TemporaryFile file;
  FileStore store(file.path());
  store.set("a", "1").get();
  store.discard().get();
  EXPECT_FALSE(std::filesystem::exists(file.path()));
  EXPECT_EQ(store.get("a").get(), "1");  // a store that has the file open keeps working
}

}  // namespace
}  // namespace weft::rpc::file_store_test
