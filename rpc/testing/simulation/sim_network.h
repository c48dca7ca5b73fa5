// SimNetwork: the network of a simulated world: its weather, and the faults that a test brings about.
//
// Owned by its SimWorld. It behaves as TCP between hosts that are named as their processes: bytes arrive in
// order, late and in pieces; what is lost is repeated, so a partition delays, and ends connections only where
// it outlasts `give_up`; connecting fails where nobody listens. Faults concern hosts by name, so they meet
// later lives of a process too. Thread-safety: none.
#pragma once

#include <weft/rpc/core/unique_function.h>
#include <weft/rpc/testing/simulation/sim_process.h>
#include <weft/rpc/testing/simulation/sim_random.h>
#include <weft/rpc/testing/simulation/sim_stream.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace weft::test {

struct SimWeather {
  // One way, of each segment; a connection's share of it is drawn once.
  std::chrono::nanoseconds least_latency = std::chrono::microseconds{10};
  std::chrono::nanoseconds max_latency = std::chrono::microseconds{500};
  std::uint64_t repeats = 3;  // of a thousand segments, that were lost and come once more:
  std::chrono::nanoseconds repeat_after = std::chrono::milliseconds{200};
  // Bytes under way and unread in one direction, until a write would block; drawn for each connection.
  std::size_t least_window = 1024;
  std::size_t max_window = 256 * 1024;
  std::uint64_t short_io = 200;    // of a thousand reads and writes, that move less than they could
  std::uint64_t false_calls = 20;  // of a thousand waits, that end though nothing has come
  // Of a thousand connections, that let attachments of these sizes be copied from the sender's memory.
  std::uint64_t bulk = 0;
  rpc::BulkRange bulk_range{4096};
  std::uint64_t resets = 0;    // of a million segments, that end their connection
  std::uint64_t refusals = 0;  // of a thousand connects, that fail
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds{127};  // the kernel's
  std::chrono::nanoseconds give_up = std::chrono::minutes{15};           // repeating what nobody acknowledges

  // A weather to try one seed in: from fine to rough, with most things drawn.
  static SimWeather draw(SimRandom& random);
};

class WEFT_EXPORT SimNetwork {
 public:
  SimNetwork(SimWorld& world, SimWeather weather, SimRandom random);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  SimWeather& weather() { return weather_; }  // for what comes from now on

  // Faults.
  void cut(const std::string& from, const std::string& to);  // this direction alone
  void partition(const std::set<std::string>& some, const std::set<std::string>& others);  // both
  void heal();                                                                             // all of them
  void reset(const std::string& one, const std::string& other);  // the connections between them
  bool reset_any();                                              // one connection; false: there is none
  // The present connections between them carry nothing any more, and nobody is told.
  void blackhole(const std::string& one, const std::string& other);
  void calm();  // heals, and no faults of the weather's from here on

  // Two connected streams, without a transport.
  using Ends = std::pair<std::unique_ptr<SimStream>, std::unique_ptr<SimStream>>;
  Ends make_pair(std::shared_ptr<SimLoop> one, std::shared_ptr<SimLoop> other);
  std::size_t open_streams(const SimProcess& process) const;  // that neither closed nor broke

  // For transports: somebody who listens, and who connects. `done` is called by the network, on no loop.
  struct Door {
    SimProcess* process;
    std::function<std::shared_ptr<SimLoop>()> pick;                 // null: nobody gets in
    std::function<void(std::unique_ptr<SimStream> stream)> opened;  // by the network, on no loop
  };
  using Connected = rpc::UniqueFunction<void(std::unique_ptr<SimStream> stream, std::error_code error)>;
  bool listen(const std::string& address, std::shared_ptr<Door> door);  // false: the address is taken
  void stop_listening(const std::string& address, const std::shared_ptr<Door>& door);
  void connect(const std::shared_ptr<SimLoop>& loop, const std::string& address, Connected done);

 private:
  friend class SimWire;
  friend class SimWorld;
  struct Attempt;

  void crashed(SimProcess& process, SimCrash how);
  void end();  // with its world
  bool blocked(const std::string& from, const std::string& to) const {
    return !cuts_.empty() && cuts_.contains({from, to});
  }
  std::chrono::nanoseconds latency();
  std::vector<std::shared_ptr<SimWire>> wires() const;
  void each_between(const std::string& one, const std::string& other,
                    const std::function<void(SimWire&)>& act) const;
  Ends make_wire(std::shared_ptr<SimLoop> one, std::shared_ptr<SimLoop> other);
  void knock(std::shared_ptr<Attempt> attempt);
  void answer(std::shared_ptr<Attempt> attempt);
  void again_later(std::shared_ptr<Attempt> attempt, void (SimNetwork::*step)(std::shared_ptr<Attempt>));

  SimWorld& world_;
  SimWeather weather_;
  SimRandom random_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::vector<std::weak_ptr<SimWire>> wires_;  // in the order of their making
  std::uint64_t last_wire_ = 0;
  std::map<std::string, std::shared_ptr<Door>> doors_;
  std::map<std::string, SimProcess*> silent_;  // addresses of hosts that crashed; nobody answers there
};

}  // namespace weft::test
