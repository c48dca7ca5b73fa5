// The futures of a group in programs that do not block: awaited in a handler, or with a continuation.
#include <weft/rpc/core/task.h>

#include <thread>

#include "tests/parallel/collectives/operations.h"

namespace weft::collectives::testing {
namespace group_futures_test {

constexpr std::size_t operations = std::size(group_operations);

// A member that runs operations on request, on the one handler thread of its agent.
struct Actor {
  const Group* group = nullptr;

  // Runs all operations one after the other. Returns how many had the right result.
  rpc::Task<std::uint64_t> act(int number) {
    const auto thread = std::this_thread::get_id();
    std::uint64_t right = 0;
    for (const GroupOperation& operation : group_operations) {
      const Round round{.n = 40'000, .number = number, .placed = number % 2 == 0};
      Begun begun = operation.begin(*group, round);
      co_await std::move(begun.done);
      if (begun.right() && std::this_thread::get_id() == thread) ++right;
    }
    co_return right;
  }
  // Fails first by a broadcast in which ranks pass different roots, after which the group continues, and then
  // by an abort.
  rpc::Task<std::string> fail() {
    std::string kinds;
    const at::Tensor tensor = at::ones({4});
    try {
      co_await group->broadcast(tensor, group->rank() == 0 ? 1 : 0);
    } catch (const rpc::Error& error) {
      kinds = rpc::to_string(error.kind());
    }
    try {
      co_await group->barrier();
      if (group->rank() == 1) group->abort("enough");
      co_await group->barrier();
    } catch (const rpc::Error& error) {
      kinds.append(", ").append(rpc::to_string(error.kind()));
    }
    co_return kinds;
  }
  using Service = rpc::Service<"group_futures_test.actor", rpc::Method<"act", &Actor::act>,
                               rpc::Method<"fail", &Actor::fail>>;
};

class GroupFutures : public OfFew {
 protected:
  GroupFutures() {
    for (int rank = 0; rank < ranks; ++rank) {
      actors.push_back(std::make_shared<Actor>());
      actors.back()->group = &groups[static_cast<std::size_t>(rank)];
      company.agent(rank).serve(actors.back());
    }
  }
  // The member's peer on the agent of its left neighbour.
  rpc::Peer peer(int rank) {
    return company.agent((rank + ranks - 1) % ranks).peer("worker" + std::to_string(rank));
  }
  std::vector<std::shared_ptr<Actor>> actors;
};
INSTANTIATE_TEST_SUITE_P(Backends, GroupFutures, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(GroupFutures, AreAwaitedInHandlers) {
  for (int number = 0; number < 2; ++number) {
    std::vector<rpc::Future<std::uint64_t>> acted;
    for (int rank = 0; rank < ranks; ++rank) acted.push_back(peer(rank).call<&Actor::act>(number));
    for (auto& future : acted) EXPECT_EQ(got(std::move(future)), operations);
  }
}

TEST_P(GroupFutures, ThrowTheirErrorsWhenTheyAreAwaited) {
  std::vector<rpc::Future<std::string>> failed;
  for (int rank = 0; rank < ranks; ++rank) failed.push_back(peer(rank).call<&Actor::fail>());
  for (auto& future : failed) EXPECT_EQ(got(std::move(future)), "invalid_argument, aborted");
}

// Each operation starts the next one when it completes, on the thread on which it completes.
void go_on(Group group, int number, std::shared_ptr<rpc::Promise<void>> over) {
  if (number == 2 * static_cast<int>(operations)) return over->complete(rpc::Result<void>{});
  const GroupOperation& operation = group_operations[static_cast<std::size_t>(number) % operations];
  Begun begun = operation.begin(group, {.n = number % 2 == 0 ? 10 : 40'000, .number = number});
  begun.done.then([group, number, over, right = std::move(begun.right),
                   name = operation.name](rpc::Result<void>&& result) {
    if (!result.ok()) return over->fail(result.error());
    EXPECT_TRUE(right()) << name;
    go_on(group, number + 1, over);
  });
}

TEST_P(GroupFutures, RunContinuations) {
  Futures over;
  for (const Group& group : groups) {
    const auto promise = std::make_shared<rpc::Promise<void>>();
    over.push_back(promise->future());
    go_on(group, 0, promise);
  }
  for (auto& future : over) got(std::move(future));
}

TEST_P(GroupFutures, PassTheirErrorsToContinuations) {
  for (const GroupOperation& operation : group_operations) {
    SCOPED_TRACE(operation.name);
    const auto others = company.groups();
    std::vector<rpc::Future<ErrorKind>> kinds;
    for (const int rank : {0, 2})  // both need the rank between them
      kinds.push_back(operation.begin(others[rank], {}).done.then([](rpc::Result<void>&& result) {
        const auto error = error_of([&] { return std::move(result).get(), 0; });
        return error ? error->kind() : ErrorKind::internal;
      }));
    others[1].abort("enough");
    for (auto& future : kinds) EXPECT_EQ(got(std::move(future)), ErrorKind::aborted);
  }
}

}  // namespace group_futures_test
}  // namespace weft::collectives::testing
