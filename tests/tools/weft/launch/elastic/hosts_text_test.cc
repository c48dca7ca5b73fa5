#include "tools/weft/launch/elastic/hosts_text.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tools/weft/errors.h"

namespace weft::tool::launch::elastic::hosts_text_test {
namespace {

std::string text_of(const std::vector<HostSlots>& hosts) {
  std::string text;
  for (const HostSlots& host : hosts)
    text += (text.empty() ? "" : " ") + host.host + "=" + std::to_string(host.slots);
  return text;
}

TEST(HostsText, AScriptPrintsHostsWithAndWithoutSlots) {
  EXPECT_EQ(text_of(parse_host_lines("", 4)), "");
  EXPECT_EQ(text_of(parse_host_lines("\n\n", 4)), "");
  EXPECT_EQ(text_of(parse_host_lines("host-1", 4)), "host-1=4");
  EXPECT_EQ(text_of(parse_host_lines("host-1:2\n", 4)), "host-1=2");
  EXPECT_EQ(text_of(parse_host_lines("host-5\nhost-1", 4)), "host-5=4 host-1=4") << "their order stays";
  EXPECT_EQ(text_of(parse_host_lines("\nhost-1:2\n\n  host-4:3 \r\n# host-9:1\n", 4)), "host-1=2 host-4=3");
  EXPECT_EQ(text_of(parse_host_lines("a:2\nb\na:0\n", 1)), "a=0 b=1") << "the later line holds";
  EXPECT_EQ(text_of(parse_host_lines("[fe80::1]:3\n::1\nfe80::2", 1)), "fe80::1=3 ::1=1 fe80::2=1");
}

TEST(HostsText, MalformedLinesAreNamed) {
  for (const char* wrong :
       {"a:x", "a:", "a:-1", ":3", "a:2 b", "a b", "-oProxyCommand=x", "a:999999999", "a:2x"}) {
    try {
      parse_host_lines("good:1\n" + std::string(wrong), 1);
      ADD_FAILURE() << wrong;
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(wrong), std::string::npos) << error.what();
    }
  }
}

TEST(HostsText, AListHasItsOwnForm) {
  EXPECT_EQ(text_of(parse_host_list("a:2, b,c:1", 4)), "a=2 b=4 c=1");
  EXPECT_THROW(parse_host_list("a:2,,b", 1), UsageError);
  EXPECT_THROW(parse_host_list("a:two", 1), UsageError);
}

TEST(HostsText, OnlyReadyPodsAreHosts) {
  EXPECT_EQ(text_of(parse_ready_pods("train-0 True \ntrain-1 False \ntrain-2  \ntrain-3 True\n"
                                     "train-4 True 2026-11-26T21:04:00Z\n",
                                     8)),
            "train-0=8 train-3=8");
}

TEST(HostsText, DiscoveryIsACommandOrABatchSystem) {
  EXPECT_EQ(discovery_command("./hosts.sh -x").command, "./hosts.sh -x");
  EXPECT_NE(discovery_command("slurm").command.find("scontrol show hostnames"), std::string::npos);
  const DiscoveryCommand pods = discovery_command("kubernetes:app=train, it's");
  EXPECT_NE(pods.command.find(R"(--selector='app=train, it'\''s')"), std::string::npos) << pods.command;
  EXPECT_EQ(text_of(pods.parse("p True\nq False\n", 2)), "p=2");
  EXPECT_THROW(discovery_command(" "), UsageError);
  EXPECT_THROW(discovery_command("kubernetes:"), UsageError);
}

}  // namespace
}  // namespace weft::tool::launch::elastic::hosts_text_test
