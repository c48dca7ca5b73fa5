#include "tools/weft/launch/elastic/remote.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tools/weft/errors.h"

namespace weft::tool::launch::elastic::remote_test {
namespace {

using Words = std::vector<std::string>;

// Runs the command in a shell, with the input and a further line.
std::string output_of(const RemoteWorker& worker) {
  const std::string file = ::testing::TempDir() + "weft_remote_input";
  std::ofstream(file) << remote_input(worker) << "the rest\n";
  std::FILE* const shell = ::popen((remote_command(worker) + " <" + file).c_str(), "r");
  std::string text;
  for (int c; (c = std::fgetc(shell)) != EOF;) text += static_cast<char>(c);
  EXPECT_EQ(::pclose(shell), 0);
  std::filesystem::remove(file);
  return text;
}

TEST(Remote, TheCommandSetsTheFolderTheVariablesAndTheProgram) {
  const std::string value = "it's \\n $X \"`\nb\\\n\n";
  RemoteWorker worker{"/",
                      {{"HOME", ""}, {"WEFT_NAME", "worker3"}, {"X", value}},
                      "echo",
                      "10s",
                      {"./train", "--name", "two words"}};
  EXPECT_TRUE(remote_command(worker).ends_with(
      " sh echo launch --attached --grace 10s -- ./train --name 'two words'"));
  EXPECT_EQ(output_of(worker), "launch --attached --grace 10s -- ./train --name two words\n");
  worker.weft = ::testing::TempDir() + "weft_remote_program";
  std::ofstream(worker.weft) << "#!/bin/sh\npwd; echo \"${HOME-none} $#\"; printf %s \"$X\"; cat\n";
  std::filesystem::permissions(worker.weft, std::filesystem::perms::owner_all);
  EXPECT_EQ(output_of(worker), "/\nnone 8\n" + value + "the rest\n");
  std::filesystem::remove(worker.weft);
}

TEST(Remote, NoCommandLineContainsAVariable) {
  const RemoteWorker worker{"/", {{"X", "secret"}}, "weft", "10s", {"./train"}};
  EXPECT_EQ(remote_command(worker).find("secret"), std::string::npos);
  EXPECT_EQ(remote_input(worker), "X=secret\n\n");
}

TEST(Remote, AShellGetsTheArgumentsOfItsProgram) {
  EXPECT_EQ(rsh_words("./rsh.sh -q", "b", "cd / && x"), (Words{"./rsh.sh", "-q", "b", "cd / && x"}));
  const Words ssh = rsh_words("ssh", "b", "x");
  EXPECT_EQ(Words(ssh.end() - 3, ssh.end()), (Words{"--", "b", "x"}));
  EXPECT_EQ(std::count(ssh.begin(), ssh.end(), "ConnectTimeout=15"), 1) << "the host may not answer";
  const Words srun = rsh_words("srun", "b", "x");
  EXPECT_EQ(Words(srun.end() - 4, srun.end()), (Words{"--nodelist=b", "sh", "-c", "x"}));
  EXPECT_EQ(rsh_words("kubectl", "pod-1", "x"),
            (Words{"kubectl", "exec", "--stdin", "pod-1", "--", "sh", "-c", "x"}));
  EXPECT_THROW(rsh_words(" ", "b", "x"), UsageError);
}

TEST(Remote, ThisHostIsKnownByItsNames) {
  char name[256] = "";
  ASSERT_EQ(::gethostname(name, sizeof name - 1), 0);
  for (const char* own : {"localhost", "127.0.0.1", "127.1.2.3", "::1", static_cast<const char*>(name)})
    EXPECT_TRUE(is_this_host(own)) << own;
  for (const char* other : {"another-host", "192.0.2.1", "another-host.example.org"})
    EXPECT_FALSE(is_this_host(other)) << other;
}

}  // namespace
}  // namespace weft::tool::launch::elastic::remote_test
