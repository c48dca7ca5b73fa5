// SimNetwork: the network of a simulated world. It has a random behavior, and a test injects faults.
//
// Owned by its SimWorld. The network behaves like TCP between hosts; each host has the name of its process.
// Bytes arrive in order, with delays and in pieces. Lost segments are repeated, so a partition causes delays.
// A partition breaks connections only if it lasts longer than `give_up`. connect() fails if no process
// listens. Faults apply to hosts by name, so they also apply to later incarnations of a process.
// Thread-safety: none.
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

// The random behavior of a network. By default it delays bytes, but breaks no connection.
struct SimWeather {
  // The latency of a segment in one direction. The range of each connection is drawn once.
  std::chrono::nanoseconds least_latency = std::chrono::microseconds{10};
  std::chrono::nanoseconds max_latency = std::chrono::microseconds{500};
  std::uint64_t repeats = 3;  // segments in 1000 that are lost and sent again
  std::chrono::nanoseconds repeat_after = std::chrono::milliseconds{200};  // the delay of such a repetition
  // Bytes in flight and unread in one direction, after which a write would block; drawn for each connection.
  std::size_t least_window = 1024;
  std::size_t max_window = 256 * 1024;

  std::uint64_t short_io = 200;    // reads and writes in 1000 that move fewer bytes than possible
  std::uint64_t false_calls = 20;  // waits in 1000 that get a spurious call
  // The number of connections in 1000 on which attachments with a size in `bulk_range` are copied from the
  // sender's memory.
  std::uint64_t bulk = 0;
  rpc::BulkRange bulk_range{4096};

  std::uint64_t resets = 0;    // segments in 1,000,000 that close their connection
  std::uint64_t refusals = 0;  // connects in 1000 that fail
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds{127};  // as in the kernel
  std::chrono::nanoseconds give_up = std::chrono::minutes{15};  // the limit for repeating unacknowledged data

  // Draws a random weather for one seed, from fine to rough.
  static SimWeather draw(SimRandom& random);
};

class WEFT_EXPORT SimNetwork {
 public:
  SimNetwork(SimWorld& world, SimWeather weather, SimRandom random);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  SimWeather& weather() { return weather_; }  // changes apply to later events

  // Faults.
  void cut(const std::string& from, const std::string& to);  // cuts this direction only
  void partition(const std::set<std::string>& some, const std::set<std::string>& others);  // both directions
  void heal();                                                                             // removes all cuts
  void reset(const std::string& one, const std::string& other);  // resets the connections between the two
  bool reset_any();                                              // resets one connection; false: none is open
  // From now on, the current connections between the two hosts deliver nothing, and report no error.
  void blackhole(const std::string& one, const std::string& other);

  void calm();  // heals, and disables the random faults

  // Two connected streams, without a transport.
  using Ends = std::pair<std::unique_ptr<SimStream>, std::unique_ptr<SimStream>>;
  Ends make_pair(std::shared_ptr<SimLoop> one, std::shared_ptr<SimLoop> other);

  std::size_t open_streams(const SimProcess& process) const;  // streams that are neither closed nor broken

  // For transports: listen() and connect(). The network calls the `done` of connect() outside of any loop.
  struct Door {
    SimProcess* process;
    std::function<std::shared_ptr<SimLoop>()> pick;  // the loop of a new connection; null: refuses it
    // The network calls it, outside of any loop.
    std::function<void(std::unique_ptr<SimStream> stream)> opened;
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
  void end();  // the world has ended
  bool blocked(const std::string& from, const std::string& to) const {
    return !cuts_.empty() && cuts_.contains({from, to});
  }
  std::chrono::nanoseconds latency();
  std::vector<std::shared_ptr<SimWire>> wires() const;
  void each_between(const std::string& one, const std::string& other,
                    const std::function<void(SimWire&)>& act) const;
  void knock(std::shared_ptr<Attempt> attempt);
  void answer(std::shared_ptr<Attempt> attempt);
  void again_later(std::shared_ptr<Attempt> attempt, void (SimNetwork::*step)(std::shared_ptr<Attempt>));

  SimWorld& world_;
  SimWeather weather_;
  SimRandom random_;
  std::set<std::pair<std::string, std::string>> cuts_;
  std::vector<std::weak_ptr<SimWire>> wires_;  // in the order in which they were made
  std::uint64_t last_wire_ = 0;
  std::map<std::string, std::shared_ptr<Door>> doors_;
  std::map<std::string, SimProcess*> silent_;  // addresses of crashed hosts, which do not reply
};

}  // namespace weft::test
