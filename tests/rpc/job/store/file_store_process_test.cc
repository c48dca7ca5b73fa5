// The file store between processes, where death is real.
#include <weft/rpc/job/store/file_store.h>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "tests/support/child.h"

namespace weft::rpc::file_store_process_test {
namespace {

class FileStoreProcesses : public testing::Test {
 protected:
  FileStoreProcesses() { ::close(::mkstemp(path_.data())); }
  ~FileStoreProcesses() override { std::filesystem::remove(path_); }

  // This process has no other thread yet, so a child may call any function.
  template <class F>
  static pid_t start(F body) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    test::run_as_child(body, std::chrono::seconds{50});
  }
  static int wait_for(pid_t child) {
    int status = 0;
    ::waitpid(child, &status, 0);
    return status;
  }

  std::string path_ = (std::filesystem::temp_directory_path() / "weft-store-XXXXXX").string();
};

TEST_F(FileStoreProcesses, WaitForEachOtherAndCountTogether) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(start([&, i] {
      FileStore store(path_);
      store.set("here/" + std::to_string(i), std::to_string(::getpid())).get();
      store.wait({"here/0", "here/1", "here/2", "here/3"}).get();
      for (int n = 0; n < 50; ++n) store.add("count", 1).get();
      store.compare_set("winner", std::nullopt, std::to_string(i)).get();
      store.set("done/" + std::to_string(i), "").get();
    }));
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
  FileStore store(path_);
  EXPECT_EQ(store.get("count").get(), "200");
  EXPECT_EQ(store.list("done/").get().entries.size(), 4U);
  EXPECT_EQ(store.list("winner").get().entries.size(), 1U);
}

TEST_F(FileStoreProcesses, AKilledWriterDoesNotDamageTheStore) {
  for (int round = 0; round < 10; ++round) {
    const pid_t child = start([&] {
      FileStore store(path_);
      store.set("begun/" + std::to_string(round), "").get();
      for (std::int64_t n = 0;; ++n)
        store.set("written", std::string(10'000, static_cast<char>('a' + n % 26))).get();
    });
    {
      FileStore store(path_);
      store.wait({"begun/" + std::to_string(round), "written"}).get();
      ::kill(child, SIGKILL);
      EXPECT_EQ(WTERMSIG(wait_for(child)), SIGKILL);
      store.add("rounds", 1).get();
    }
    FileStore store(path_);
    const std::string value = store.get("written").get();
    EXPECT_EQ(value, std::string(10'000, value.front()));
    EXPECT_EQ(store.get("rounds").get(), std::to_string(round + 1));
  }
}

}  // namespace
}  // namespace weft::rpc::file_store_process_test
