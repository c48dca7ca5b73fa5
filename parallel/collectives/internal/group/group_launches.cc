// Launches: collectives that become ready in different orders on the ranks of a group, and start in one
// order.
//
// Rank 0 collects the members that are ready for a launch, as a round of values (value_rounds.h). When all
// members are ready, rank 0 numbers the launch and sends the number to them. Each member starts launches in
// the order of their numbers. So a launch never waits for another launch for which some member is not ready.
#include <weft/parallel/collectives/internal/group/group_core.h>
#include <weft/rpc/codec/packed.h>

#include <ATen/ThreadLocalState.h>

namespace weft::collectives {

void GroupCore::launch(const std::string& name, LaunchSequence::Begin begin, std::source_location site,
                       std::optional<std::chrono::nanoseconds> timeout) {
  give({.launch = name}, "launch(" + name + ")", site, {}, true, timeout)
      .then([self = shared_from_this(),
             begin = std::move(begin)](rpc::Result<ValueRounds::Values>&& number) mutable {
        if (!number.ok()) return begin(number.error());
        // In turn, because this continuation runs on the caller's thread if all members were ready before it
        // was attached.
        GroupCore& core = *self;
        core.turns_.post(
            [self, number = std::move(number), begin = std::move(begin)]() mutable {
              self->launch_numbered(number.value().at(0), std::move(begin));
            },
            *core.loop_, self);
      });
}

void GroupCore::launch_numbered(const rpc::Buffer& number, LaunchSequence::Begin begin) {
  if (ended_) return begin(std::make_exception_ptr(*ended_));
  auto place = rpc::capture([&] { return rpc::unpack<std::uint64_t>(number); });
  if (!place.ok()) {
    fail(place.error());
    return begin(place.error());
  }
  // On the loop: code of the program must not run in the group's turn.
  for (LaunchSequence::Begin& next : launches_.ready(std::move(place).get(), std::move(begin)))
    begins_.post([next = std::move(next)]() mutable { next({}); }, *loop_, shared_from_this());
}

}  // namespace weft::collectives
