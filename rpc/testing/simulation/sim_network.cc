#include <weft/rpc/testing/simulation/sim_network.h>

#include <weft/rpc/testing/simulation/internal/sim_wire.h>
#include <weft/rpc/testing/simulation/sim_world.h>

#include <asio/error.hpp>

#include <algorithm>

namespace weft::test {

// One connect(): a request to the listening host, and its reply.
struct SimNetwork::Attempt {
  std::shared_ptr<SimLoop> loop;
  std::string address;
  Connected done;
  rpc::Clock::time_point until;
  std::chrono::nanoseconds pause = std::chrono::seconds{1};  // until the request is repeated
  std::string host;                                          // the host that replied
  std::unique_ptr<SimStream> stream{};                       // null: refused
};

SimWeather SimWeather::draw(SimRandom& random) {
  SimWeather weather;
  weather.max_latency = std::chrono::microseconds(random.spread(20, 20'000));
  weather.repeats = random.coin() ? 0 : random.spread(1, 100);
  weather.least_window = static_cast<std::size_t>(random.spread(256, 4096));
  weather.max_window = weather.least_window + static_cast<std::size_t>(random.spread(1, 256 * 1024));
  weather.short_io = random.coin() ? 0 : random.spread(1, 900);
  weather.false_calls = random.coin() ? 0 : random.spread(1, 300);
  weather.bulk = random.coin() ? 0 : random.spread(1, 1000);
  weather.bulk_range.begin = static_cast<std::size_t>(random.spread(1, 16 * 1024));
  weather.resets = random.chance(700) ? 0 : random.spread(1, 20'000);
  weather.refusals = random.chance(700) ? 0 : random.spread(1, 300);
  if (random.coin())
    weather.bulk_range.end = weather.bulk_range.begin + static_cast<std::size_t>(random.spread(1, 64 * 1024));
  return weather;
}

SimNetwork::SimNetwork(SimWorld& world, SimWeather weather, SimRandom random)
    : world_(world), weather_(weather), random_(random) {}
SimNetwork::~SimNetwork() = default;

std::chrono::nanoseconds SimNetwork::latency() {
  return random_.between(weather_.least_latency, std::max(weather_.least_latency, weather_.max_latency));
}

std::vector<std::shared_ptr<SimWire>> SimNetwork::wires() const {
  std::vector<std::shared_ptr<SimWire>> alive;
  for (const auto& weak : wires_)
    if (auto wire = weak.lock()) alive.push_back(std::move(wire));
  return alive;
}

// --- Faults ---

void SimNetwork::cut(const std::string& from, const std::string& to) {
  world_.trace().note(world_.now(), "cut: " + from + " to " + to);
  cuts_.emplace(from, to);
}

void SimNetwork::partition(const std::set<std::string>& some, const std::set<std::string>& others) {
  for (const std::string& one : some)
    for (const std::string& other : others) {
      cut(one, other);
      cut(other, one);
    }
}

void SimNetwork::heal() {
  if (std::exchange(cuts_, {}).empty()) return;
  world_.trace().note(world_.now(), "heal");
  for (const auto& wire : wires()) wire->resume();
}

void SimNetwork::each_between(const std::string& one, const std::string& other,
                              const std::function<void(SimWire&)>& act) const {
  for (const auto& wire : wires())
    if ((wire->name(0) == one && wire->name(1) == other) || (wire->name(0) == other && wire->name(1) == one))
      act(*wire);
}

void SimNetwork::reset(const std::string& one, const std::string& other) {
  each_between(one, other, [](SimWire& wire) { wire.reset(); });
}

bool SimNetwork::reset_any() {
  auto open = wires();
  std::erase_if(open, [](const auto& wire) { return !wire->open(0) && !wire->open(1); });
  if (open.empty()) return false;
  random_.pick(open)->reset();
  return true;
}

void SimNetwork::blackhole(const std::string& one, const std::string& other) {
  each_between(one, other, [](SimWire& wire) { wire.blackhole(); });
}

void SimNetwork::calm() {
  weather_.resets = weather_.refusals = 0;
  heal();
}

void SimNetwork::crashed(SimProcess& process, SimCrash how) {
  for (auto door = doors_.begin(); door != doors_.end();) {
    if (door->second->process != &process) {
      ++door;
      continue;
    }
    if (how == SimCrash::host) silent_[door->first] = &process;
    door = doors_.erase(door);
  }
  for (const auto& wire : wires())
    for (const std::size_t side : {0U, 1U})
      if (wire->joins(process, side)) wire->crash(side, how);
}

void SimNetwork::end() {
  const auto all = wires();
  for (const auto& wire : all) wire->detach();
  for (const auto& wire : all) wire->drop_jobs();
  doors_.clear();
}

// --- Streams ---

SimNetwork::Ends SimNetwork::make_pair(std::shared_ptr<SimLoop> one, std::shared_ptr<SimLoop> other) {
  std::erase_if(wires_, [](const auto& weak) { return weak.expired(); });
  const auto wire = std::make_shared<SimWire>(*this, ++last_wire_, std::move(one), std::move(other));
  wires_.push_back(wire);
  world_.trace().add(world_.now(), "connected", wire->name(0), last_wire_);
  return {std::make_unique<SimStream>(wire, 0), std::make_unique<SimStream>(wire, 1)};
}

std::size_t SimNetwork::open_streams(const SimProcess& process) const {
  std::size_t count = 0;
  for (const auto& wire : wires())
    for (const std::size_t side : {0U, 1U})
      if (wire->joins(process, side) && wire->open(side)) ++count;
  return count;
}

// --- Connecting ---

bool SimNetwork::listen(const std::string& address, std::shared_ptr<Door> door) {
  if (!doors_.emplace(address, std::move(door)).second) return false;
  silent_.erase(address);
  return true;
}

void SimNetwork::stop_listening(const std::string& address, const std::shared_ptr<Door>& door) {
  if (const auto found = doors_.find(address); found != doors_.end() && found->second == door)
    doors_.erase(found);
}

void SimNetwork::connect(const std::shared_ptr<SimLoop>& loop, const std::string& address, Connected done) {
  auto attempt = std::make_shared<Attempt>(
      Attempt{loop, address, std::move(done), rpc::later(world_.now(), weather_.connect_timeout)});
  world_.after(latency(), [this, attempt] { knock(attempt); });
}

void SimNetwork::again_later(std::shared_ptr<Attempt> attempt,
                             void (SimNetwork::*step)(std::shared_ptr<Attempt>)) {
  if (world_.now() >= attempt->until) {
    attempt->stream.reset();
    return attempt->done(nullptr, asio::error::timed_out);
  }
  const auto wait = attempt->pause;
  attempt->pause *= 2;
  world_.after(wait, [this, attempt, step] { (this->*step)(attempt); });
}

// The request arrives.
void SimNetwork::knock(std::shared_ptr<Attempt> attempt) {
  SimProcess* from = attempt->loop->process();
  if (!from->alive()) return static_cast<void>(from->keep(std::move(attempt)));  // the attempt never ends
  const auto found = doors_.find(attempt->address);
  if (found == doors_.end()) {
    // No process listens: a host that is up refuses.
    const auto silent = silent_.find(attempt->address);
    if (silent != silent_.end() && world_.find(silent->second->name()) == nullptr)
      return again_later(std::move(attempt), &SimNetwork::knock);
    return answer(std::move(attempt));
  }
  const auto door = found->second;
  if (blocked(from->name(), door->process->name())) return again_later(attempt, &SimNetwork::knock);
  attempt->host = door->process->name();
  if (!random_.chance(weather_.refusals)) {
    if (const auto loop = door->pick()) {
      Ends ends = make_pair(attempt->loop, loop);
      attempt->stream = std::move(ends.first);
      door->opened(std::move(ends.second));
    }
  }
  world_.after(latency(), [this, attempt] { answer(attempt); });
}

// The reply arrives.
void SimNetwork::answer(std::shared_ptr<Attempt> attempt) {
  SimProcess* from = attempt->loop->process();
  if (!from->alive()) return static_cast<void>(from->keep(std::move(attempt)));
  if (blocked(attempt->host, from->name())) return again_later(std::move(attempt), &SimNetwork::answer);
  const std::error_code error =
      attempt->stream != nullptr ? std::error_code{} : std::error_code(asio::error::connection_refused);
  attempt->done(std::move(attempt->stream), error);
}

}  // namespace weft::test
