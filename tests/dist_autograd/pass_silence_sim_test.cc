// The time until the agents detect the death of a silent host: a host vanishes while a pass runs. Within the
// heartbeat timeout of its peers, every survivor has aborted the pass. The test runs in virtual time.
#include <gtest/gtest.h>

#include "tests/dist_autograd/pass_sim.h"
#include "tests/support/errors.h"

namespace weft::dist_autograd::pass_silence_sim_test {
namespace {

using namespace sim;

// The heartbeat timeout, the heartbeat interval, and one second until the detecting worker has notified the
// others.
constexpr auto bound = 20s + 5s + 1s;

TEST(PassSilence, AbortsItsPassOnAllSurvivorsWithinTheHeartbeatTimeout) {
  std::size_t failed = 0;
  const auto report = weft::test::for_each_seed(
      {.count = 300, .test = "PassSilence.AbortsItsPassOnAllSurvivorsWithinTheHeartbeatTimeout"},
      [&](SimWorld& world) {
        world.pace().stalls = 0;
        const std::vector<std::string> names{"w0", "w1", "w2", "w3"};
        Plant& plant = world.keep(std::make_shared<Plant>(Fault::none, world.order().next()));
        rpc::AgentOptions options;
        options.heartbeat = {.interval = 5s, .timeout = 20s};
        std::vector<Program*> programs;
        for (const std::string& name : names)
          programs.push_back(
              &world.keep(std::make_shared<Program>(world.start(name), options, names, plant)));

        // The agents are connected before the fault, so that an existing connection fails.
        const auto chain = [] { return Plan{"w1", {Plan{"w2", {Plan{"w3", {}}}}}}; };
        const auto first = std::make_shared<Step>();
        first->plan = chain();
        programs[0]->begin(first);
        if (!world.run_until([&] { return first->ended; }, 10s) || first->error != nullptr)
          return world.violation("a step does not end where nothing is wrong");

        const auto step = std::make_shared<Step>();
        step->plan = chain();
        if (world.random().coin()) step->mode = BackwardMode::fast;
        programs[0]->begin(step);
        world.run_for(std::chrono::microseconds(world.random().between(0, 3000)));
        if (step->ended) return;
        const std::size_t dead = world.random().between(1, 3);
        world.crash(programs[dead]->process(), weft::test::SimCrash::host);

        const auto given_up = [&] {
          for (const Program* program : programs)
            if (program->runs() && program->live_passes() != 0) return false;
          return step->ended;
        };
        if (!world.run_until(given_up, bound)) {
          std::string who;
          for (const Program* program : programs)
            if (program->runs() && program->live_passes() != 0) who += " " + program->process().name();
          return world.violation(std::string(step->ended ? "ended" : "not ended") +
                                 " after the bound; the pass is alive at:" + who);
        }
        if (step->error == nullptr) return;  // the host died late enough
        ++failed;
        const auto kind = weft::test::kind_of([&] { std::rethrow_exception(step->error); });
        if (kind != rpc::ErrorKind::peer_lost && kind != rpc::ErrorKind::aborted &&
            kind != rpc::ErrorKind::unavailable)
          world.violation("a silent death is reported as " + weft::test::text_of(step->error));
      });
  EXPECT_TRUE(report.ok()) << report.text;
  EXPECT_GT(failed, 100U) << "steps that the death came into";
}

}  // namespace
}  // namespace weft::dist_autograd::pass_silence_sim_test
