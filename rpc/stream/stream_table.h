// StreamTable: the streams that an agent has handed to peers, and the methods by which peers pull their
// items. Each agent has one StreamTable, in the slots of its layers.
//
// A stream belongs to one incarnation of one peer: other agents cannot pull it, and it ends when that
// incarnation is gone. Messages with streams list their ids in a section, so that the receiver can
// close the streams that its program does not take. Thread-safety: all members may be called from any thread.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/peer.h>
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
  static constexpr std::string_view id_field = "stream";  // the field of the record that represents a stream

  explicit StreamTable(const std::shared_ptr<AgentCore>& core);
  void serve_methods();
  const std::string& name() const { return self_.name; }
  StreamWindow window() const { return options_.window; }

  // For the codec. The table of the agent that writes the message. Throws failed_precondition if the message
  // is not a call or a reply of an agent.
  static std::shared_ptr<StreamTable> of(OutgoingMessage& message);
  StreamHome home(OutgoingMessage& message) const;  // for generators in the message
  std::uint64_t hand_over(OutgoingMessage& message, std::shared_ptr<ServedStream> stream);
  static std::shared_ptr<StreamReader> receive(ValueReader value);
  // A call of a method of the StreamTable of another agent.
  static OutgoingCall make_call(const Peer& source, std::string_view method,
                                std::initializer_list<std::uint64_t> arguments);
  static void send_close(const Peer& source, std::uint64_t id);

  void end(std::uint64_t id, const std::exception_ptr& error);
  // Like end(), but the reader can still get the error by a pull, until the reader closes the stream.
  void stop(std::uint64_t id, const std::exception_ptr& error);
  std::shared_ptr<ServedStream> take(std::uint64_t id);  // removes the stream; null: it is not open
  // The call that has the stream as an argument is about to be sent to `to`.
  void leaves(std::uint64_t id, const AgentId& to);

  bool knows(std::string_view section) const override { return section == section_key; }
  void incoming(std::shared_ptr<IncomingCall> call, Callback next) override;
  void replied(IncomingMessage& message, const AgentId& from) override;
  void draining() override;
  void peer_gone(const AgentId& peer, const Error& reason) override;
  void shut_down() override;

 private:
  class Carried;
  struct Received;
  struct Entry {
    std::shared_ptr<ServedStream> stream;
    std::shared_ptr<const AgentId> reader;  // null: not known yet, because the call has not been sent
    std::string counted_as;                 // the key in open_
    bool result = false;                    // the stream is the result of a call that this agent served
  };

  Peer peer(const AgentId& id) const;
  void note(IncomingMessage& message, const AgentId& from, std::string_view method);
  Entry* entry_of(std::uint64_t id) WEFT_REQUIRES(mutex_);  // null: the stream is not open
  std::shared_ptr<ServedStream> find(std::uint64_t id, const IncomingCall& asked_by);
  template <class Which>
  std::vector<std::uint64_t> ids_of(Which which);

  const std::weak_ptr<AgentCore> core_;
  const AgentId self_;
  const StreamOptions options_;
  Mutex mutex_;
  std::uint64_t last_id_ WEFT_GUARDED_BY(mutex_) = 0;
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;
  std::map<std::uint64_t, Entry> served_ WEFT_GUARDED_BY(mutex_);
  // The number of open streams for each peer.
  std::map<std::string, std::size_t> open_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc::detail

namespace weft::rpc {

// Adds a StreamTable to an agent. Each agent calls it when it is made.
WEFT_EXPORT void install_streams(const std::shared_ptr<AgentCore>& core);

}  // namespace weft::rpc
