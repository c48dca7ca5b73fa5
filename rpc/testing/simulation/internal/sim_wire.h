// SimWire: a simulated connection. It has two ends, and a pipe for the data that each end writes.
//
// A pipe has segments in flight and bytes that have arrived. Both count against the window. The writer learns
// of a read after a further latency. An end is open until it is closed or crashes; data that arrives later is
// answered with a reset. Owned by its two SimStreams; the network refers to it weakly. Thread-safety: none.
#pragma once

#include <weft/rpc/testing/simulation/sim_network.h>

#include <array>
#include <deque>
#include <optional>

namespace weft::test {

class SimWire final : public std::enable_shared_from_this<SimWire> {
 public:
  using Side = std::size_t;  // 0: the side that connected, 1: the side that accepted
  enum class Event : std::uint8_t { readable, writable, acknowledged };

  SimWire(SimNetwork& network, std::uint64_t number, std::shared_ptr<SimLoop> one,
          std::shared_ptr<SimLoop> other);

  // Called by SimStream.
  std::size_t read(Side side, std::span<const std::span<std::byte>> into, std::error_code& error);
  std::size_t write(Side side, std::span<const std::span<const std::byte>> from, std::error_code& error);
  void when(Side side, Event event, rpc::Callback job);
  void shut_down_writing(Side side, std::error_code& error);
  void close(Side side);
  const std::optional<rpc::BulkRange>& bulk() const { return bulk_; }
  // Whether both processes are on one host. Then each process can read the other's memory, and learns at once
  // if the other ends.
  bool one_host() const { return bulk_.has_value(); }
  void pull(Side side, std::uint64_t address, std::span<std::byte> into, std::error_code& error);
  void acknowledge(Side side);
  std::uint64_t acknowledged(Side side) const { return pipes_[side].acknowledged; }
  std::string describe(Side side) const;
  const std::string& name(Side side) const { return names_[side]; }

  // Called by the network.
  bool joins(const SimProcess& process, Side side) const { return ends_[side].process == &process; }
  bool open(Side side) const { return ends_[side].open && !ends_[side].broken; }
  void crash(Side side, SimCrash how);
  void reset();
  void blackhole();
  void resume();     // a partition has healed
  void detach();     // the world has ended
  void drop_jobs();  // call it after detach(): objects of the jobs may own this wire

 private:
  struct Segment {
    enum class Kind : std::uint8_t { data, end, reset };
    rpc::Clock::time_point arrives;
    Kind kind;
    std::vector<std::byte> bytes;
  };
  struct Pipe {
    std::deque<Segment> in_flight;
    rpc::Clock::time_point last_arrival{};
    bool armed = false;  // true: the world has an event for the arrival of the first segment
    std::deque<std::vector<std::byte>> arrived;  // unread
    std::size_t front_read = 0;                  // bytes of arrived.front() that were read
    std::size_t unread = 0;
    bool end_sent = false, end_arrived = false;
    std::size_t taken = 0;   // the used part of the window, as far as the writer knows
    std::size_t credit = 0;  // bytes that were read, which the writer does not know yet
    bool credit_armed = false;
    std::uint64_t acknowledged = 0;  // frames whose bulk was copied, as far as the writer knows
    std::uint64_t pulled = 0;        // frames copied, which the writer does not know yet
    bool lost = false;               // nothing is delivered any more
    bool watched = false;
    std::uint64_t progress = 0;
  };
  struct End {
    std::shared_ptr<SimLoop> loop;
    SimProcess* process = nullptr;
    bool open = true;
    bool gone = false;  // its host has crashed
    bool reset_sent = false;
    std::error_code broken;
    std::array<rpc::Callback, 3> jobs;  // index: an Event
    std::array<bool, 3> posted{};
  };

  static Side other(Side side) { return 1 - side; }
  SimWorld& world() const { return network_->world_; }
  SimRandom& random() const { return network_->random_; }
  const SimWeather& weather() const { return network_->weather_; }
  bool blocked(Side from) const { return network_->blocked(names_[from], names_[other(from)]); }
  void check_use(Side side, const char* what) const;
  std::size_t share(std::size_t max) const;  // a random part of `max`
  bool ready(Side side, Event event) const;
  void notify(Side side, Event event);
  void send(Side from, Segment::Kind kind, std::vector<std::byte> bytes = {});
  void arm(Side from);
  void arrive(Side from);
  void deliver(Side to, Segment segment);
  void arm_credit(Side writer);
  void send_reset(Side from);
  void break_end(Side side, std::error_code error);
  void watch(Side writer);

  SimNetwork* network_;  // null after the end of the world
  const std::uint64_t number_;
  const std::array<std::string, 2> names_;
  const std::size_t window_;
  const std::optional<rpc::BulkRange> bulk_;
  std::array<std::chrono::nanoseconds, 2> latency_;  // index: the side that sends
  std::array<End, 2> ends_;
  std::array<Pipe, 2> pipes_;  // the data that each end writes
};

}  // namespace weft::test
