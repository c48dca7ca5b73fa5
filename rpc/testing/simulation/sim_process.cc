#include <weft/rpc/testing/simulation/sim_process.h>

#include <weft/rpc/testing/simulation/sim_world.h>

#include <algorithm>

namespace weft::test {

SimProcess::SimProcess(SimWorld& world, std::string name, std::uint64_t incarnation)
    : world_(world), name_(std::move(name)), incarnation_(incarnation) {}

SimProcess::~SimProcess() = default;

template <class Runner>
std::shared_ptr<Runner> SimProcess::make(const char* kind) {
  auto runner = std::shared_ptr<Runner>(new Runner(
      *this, name_ + "#" + std::to_string(incarnation_) + " " + kind + std::to_string(runners_.size())));
  runner->crashed_ = !alive_;
  runners_.push_back(runner);
  return runner;
}

std::shared_ptr<SimLoop> SimProcess::make_loop() { return make<SimLoop>("loop"); }
std::shared_ptr<SimExecutor> SimProcess::make_executor() { return make<SimExecutor>("executor"); }

void SimProcess::destroy_kept() {
  while (!kept_.empty()) {
    const auto last = std::move(kept_.back());
    kept_.pop_back();
  }
}

void SimProcess::stall(std::chrono::nanoseconds span) {
  world_.trace().add(world_.now(), "stall", name_, static_cast<std::uint64_t>(span.count()));
  for (const auto& runner : runners_)
    runner->busy_until_ = std::max(runner->busy_until_, rpc::later(world_.now(), span));
}

void SimProcess::stop() {
  alive_ = false;
  for (const auto& runner : runners_) {
    runner->crashed_ = true;
    for (rpc::Callback& job : runner->take_all()) remains_.push_back(std::move(job));
  }
}

void SimProcess::clear() {
  destroy_kept();
  std::exchange(remains_, {}).clear();
}

void SimProcess::detach(rpc::Clock::time_point end) {
  for (const auto& runner : runners_) {
    runner->process_ = nullptr;
    runner->end_ = end;
  }
}

}  // namespace weft::test
