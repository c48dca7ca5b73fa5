#include "tools/weft/launch/elastic/remote.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tools/weft/errors.h"

namespace weft::tool::launch::elastic::remote_test {
namespace {

using Words = std::vector<std::string>;

TEST(Remote, TheCommandSetsTheFolderTheVariablesAndTheProgram) {
  const RemoteWorker worker{"/home/a b",
                            {{"RANK", ""}, {"WEFT_NAME", "worker3"}, {"X", "it's"}},
                            "/opt/weft",
                            "10s",
                            {"./train", "--name", "two words"}};
  EXPECT_EQ(remote_command(worker),
            "cd '/home/a b' && exec env -u RANK WEFT_NAME=worker3 'X=it'\\''s' /opt/weft launch --attached "
            "--grace 10s "
            "-- ./train --name 'two words'");
}

TEST(Remote, AShellGetsTheArgumentsOfItsProgram) {
  EXPECT_EQ(rsh_words("./rsh.sh -q", "b", "cd / && x"), (Words{"./rsh.sh", "-q", "b", "cd / && x"}));
  const Words ssh = rsh_words("ssh", "b", "x");
  EXPECT_EQ(Words(ssh.end() - 3, ssh.end()), (Words{"--", "b", "x"}));
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
