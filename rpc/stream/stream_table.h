// StreamTable: an agent's part in streams: those that it has handed to peers, and the methods by which they
// are pulled; one for each agent, found in its layers' slots.
//
// A stream belongs to one incarnation of one peer: nobody else may pull it, and it ends with the last
// connection to that incarnation. Messages that carry streams list their ids in a section, so that a receiver
// ends those that its program never takes. Thread-safety: every member may be called from any thread.
#pragma once

#include <weft/rpc/agent/agent_core.h>
#include <weft/rpc/agent/peer.h>
#include <weft/rpc/stream/served_stream.h>

#include <map>
#include <set>

namespace weft::rpc::detail {

class StreamReader;

class WEFT_EXPORT StreamTable final : public CallHook, public std::enable_shared_from_this<StreamTable> {
 public:
  static constexpr std::string_view next_method = "weft.stream.next";
  static constexpr std::string_view close_method = "weft.stream.close";
  static constexpr std::string_view section_key = "stream";
  static constexpr std::string_view id_field = "stream";  // of the record that stands for a stream

  explicit StreamTable(const std::shared_ptr<AgentCore>& core);
  void serve_methods();
  const std::string& name() const { return self_.name; }
  StreamWindow window() const { return options_.window; }

  // For the codec. The table of the agent that writes the message; failed_precondition where it has none.
  static std::shared_ptr<StreamTable> of(OutgoingMessage& message);
  StreamHome home(OutgoingMessage& message) const;  // of generators in it
  std::uint64_t hand_over(OutgoingMessage& message, std::shared_ptr<ServedStream> stream);
  static std::shared_ptr<StreamReader> receive(ValueReader value);
  static void send_close(const Peer& source, std::uint64_t id);

  void end(std::uint64_t id, const std::exception_ptr& error);
  // The same, and its reader is told why when it asks, or lets go.
  void stop(std::uint64_t id, const std::exception_ptr& error);
  void forget(std::uint64_t id);                     // it has ended by itself
  void leaves(std::uint64_t id, const AgentId& to);  // it was an argument of a call that goes there now
  void settle(std::uint64_t id);                     // that call has ended over there

  bool knows(std::string_view section) const override { return section == section_key; }
  void incoming(std::shared_ptr<IncomingCall> call, Callback next) override;
  void replied(IncomingMessage& message, const AgentId& from) override;
  void draining() override;
  void connection_gone(std::uint64_t connection, const AgentId& peer, const Error& reason) override;
  void peer_gone(const AgentId& peer, const Error& reason) override;
  void shut_down() override;

 private:
  class Carried;
  struct Received;
  struct Entry {
    std::shared_ptr<ServedStream> stream;
    std::shared_ptr<const AgentId> reader;  // null: not known yet, for the call has not left
    std::string counted_as;
    bool result = false;  // of a call that was served here
    // By which its reader was heard of last: that of the call whose result it is, then of its pulls. The end
    // of that is the stream's: an answer that nobody got may have been on its way. 0: not yet.
    std::uint64_t connection = 0;
    bool settled = false;  // the call that it was an argument of has ended
  };
  using Entries = std::vector<std::shared_ptr<ServedStream>>;

  Peer peer(const AgentId& life) const;
  void note(IncomingMessage& message, const AgentId& from, std::string_view method);
  std::shared_ptr<ServedStream> find(std::uint64_t id, const IncomingCall& asked_by);
  std::shared_ptr<ServedStream> take(std::uint64_t id);
  template <class Which>
  Entries take_all(Which which);

  const std::weak_ptr<AgentCore> core_;
  const AgentId self_;
  const StreamOptions options_;
  std::mutex mutex_;  // guards what follows
  std::uint64_t last_id_ = 0;
  bool ended_ = false;
  std::map<std::uint64_t, Entry> served_;
  std::map<std::string, std::size_t> open_;                // of each peer
  std::vector<std::shared_ptr<IncomingCall>> unanswered_;  // until the agent's connections have ended
};

}  // namespace weft::rpc::detail
