// LinkLanes: makes the lanes of a link, which are connections in addition to the link's own
// (rpc/transport/lanes.h).
//
// The hello of each side states its maximum number of lanes, and a key. The side that dialled makes further
// connections to the same address, on the agent's loops in turn. The first frame on each of these connections
// states the link to which the lane belongs. The other side detaches the connections from the links that were
// created for them, and confirms on the original link that all lanes have arrived. If one of these steps
// fails, the link continues without lanes. Owned by the link; functions are called on its loop.
#pragma once

#include <weft/rpc/transport/address.h>
#include <weft/rpc/transport/connection.h>
#include <weft/rpc/transport/lanes.h>
#include <weft/rpc/wire/message.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

class AgentCore;

class LinkLanes final : public std::enable_shared_from_this<LinkLanes> {
 public:
  // dialled: this side has dialled the connection.
  LinkLanes(std::shared_ptr<AgentCore> core, std::shared_ptr<Connection> connection, bool dialled);

  // The maximum number of lanes of this side; 0: the link has no lanes. Any thread.
  std::uint16_t offered() const { return offered_; }
  const LaneKey& key() const { return key_; }  // the key of this side; any thread

  // peer_known(): called when the hello of the other side has arrived. identity: the peer's proven identity.
  // Throws as take() does. dial(): called after peer_known(), on the side that dialled. theirs: the hello of
  // the other side. agent: the expected name of the peer; empty if an address was dialled.
  void peer_known(const std::string& identity);
  void dial(const HelloInfo& theirs, const Address& address, const std::string& agent);
  // Called on the side that accepted the connection, when a lane with this link's key has arrived, possibly
  // before the peer's hello. identity: the proven identity of the lane's peer. Throws protocol_error if the
  // lane is refused.
  void take(const LaneInfo& info, const std::string& identity, Lanes::Stream lane);
  void on_frame(const LaneInfo& info);  // the link has received a frame about lanes
  void end();                           // the link has ended; idempotent

 private:
  class Dial;
  struct Early {
    LaneInfo info;
    std::string identity;
    Lanes::Stream lane;
  };
  void expect(std::size_t count);
  void collect(std::size_t index, Lanes::Stream lane);
  void open();
  void give_up(const std::string& why);

  const std::shared_ptr<AgentCore> core_;
  const bool dialled_;
  std::shared_ptr<Connection> connection_;  // null: the link has ended
  std::uint16_t offered_ = 0;
  LaneKey key_{};
  // The proven identity of the peer; nullopt until its hello has arrived.
  std::optional<std::string> identity_;
  std::vector<Early> early_;  // lanes that arrived before the hello
  bool told_ = false;         // on the side that dialled: the other side has confirmed all lanes
  bool given_up_ = false;
  bool open_ = false;
  std::vector<std::shared_ptr<Dial>> dials_;
  std::vector<Lanes::Stream> streams_;  // by index; the streams of missing lanes are empty
  std::size_t missing_ = 0;
  Loop::TimerId timeout_ = 0;
};

}  // namespace weft::rpc
