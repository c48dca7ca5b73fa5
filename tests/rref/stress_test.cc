// Several threads create, call, hand over and drop references among four agents at the same time. At the end
// no object is left.
#include <weft/rref/rref.h>

#include <random>

#include "tests/rref/rref_support.h"

namespace weft::rref::stress_test {
namespace {

constexpr int threads = 4, rounds = 1500;
const std::vector<std::string> names{"owner", "anna", "bert", "cora"};

class Stress : public RRefTest, public testing::WithParamInterface<bool> {
 protected:
  // The work of one thread, on a few private handles and on the objects that all threads share.
  void work(std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto any = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    std::vector<std::pair<std::string, RRef<Box>>> mine;  // with the name of each owner
    std::vector<rpc::Future<void>> in_progress;
    for (int round = 0; round < rounds; ++round) {
      const std::string& who = names[any(names.size())];
      const std::string& whom = names[any(names.size())];
      const rpc::Peer& peer = peers.at({who, whom});
      switch (mine.empty() ? 0 : any(7)) {
        case 0:
        case 1:
          mine.emplace_back(who, create<Box>(peer, round));
          break;
        case 2:
          in_progress.push_back(mine[any(mine.size())].second.call<&Box::set>(round));
          break;
        case 3: {
          const auto& [holder, box] = mine[any(mine.size())];
          in_progress.push_back(peers.at({holder, whom}).call<&Keeper::keep>(box));
          break;
        }
        case 4: {
          const auto& [holder, box] = mine[any(mine.size())];
          peers.at({holder, whom}).notify<&Keeper::keep>(box);
          break;
        }
        case 5: {  // one box keeps another, always the older one, to avoid a cycle
          const auto i = any(mine.size()), j = any(mine.size());
          if (i != j && mine[i].first == mine[j].first)
            in_progress.push_back(mine[std::max(i, j)].second.call<&Box::keep>(mine[std::min(i, j)].second));
          break;
        }
        default:
          mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(any(mine.size())));
          break;
      }
      if (any(20) == 0) peer.call<&Keeper::drop>().then([](auto&&) {});
      if (any(50) == 0) wait_for(in_progress);
    }
    wait_for(in_progress);
  }
  void wait_for(std::vector<rpc::Future<void>>& in_progress) {
    for (auto& future : in_progress) {
      got(std::move(future));
      ++ended;
    }
    in_progress.clear();
  }
  std::map<std::pair<std::string, std::string>, rpc::Peer> peers;
  std::atomic<int> ended{0};
};
INSTANTIATE_TEST_SUITE_P(, Stress, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "InProcess"; });

TEST_P(Stress, ThreadsLeaveNoReferences) {
  start(names, GetParam());
  for (const auto& from : names)
    for (const auto& to : names) peers.emplace(std::pair(from, to), peer(from, to));
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i)
    workers.emplace_back([this, i] {
      try {
        work(static_cast<std::uint32_t>(i));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
  for (auto& worker : workers) worker.join();
  EXPECT_GT(ended, threads * rounds / 10);
  // The notifications have been served once calls that were made after them have completed, and their
  // handlers have got the confirmations that they waited for.
  eventually("all handed over boxes have been kept", [&] {
    for (auto& [name, keeper] : keepers) keeper->drop();
    if (Counted::alive != 0) return false;
    for (const auto& name : names)
      if (!context(name)->live_objects().empty() || !context(name)->live_forks().empty()) return false;
    return true;
  });
  expect_nothing_left();
  EXPECT_GT(Counted::made, threads * rounds / 5);
}

}  // namespace
}  // namespace weft::rref::stress_test
