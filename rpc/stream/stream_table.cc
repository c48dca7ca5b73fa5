#include <weft/rpc/stream/stream_table.h>

#include <weft/rpc/call/invoke.h>
#include <weft/rpc/stream/reader.h>

namespace weft::rpc {
namespace detail {

// The part of the StreamTable in a message that carries streams, on the sending side. After a reply has been
// sent, its streams end by messages of the receiver, or when the receiver is gone.
class StreamTable::Carried final : public CallPart {
 public:
  explicit Carried(std::shared_ptr<StreamTable> table, bool reply)
      : table_(std::move(table)), reply_(reply) {}
  ~Carried() override {
    if (!over_ && !(reply_ && sealed_))
      ended(stream_error(ErrorKind::aborted, "the message with this stream was dropped"));
  }
  static Carried& of(OutgoingMessage& message, const std::shared_ptr<StreamTable>& table) {
    if (auto* carried = message.slots().find<Carried>()) return *carried;
    auto carried = std::make_shared<Carried>(table, message.is_reply());
    message.add_part(carried);
    if (!message.is_reply()) {
      message.when_leaving([weak = std::weak_ptr(carried)](const AgentId& to) {
        if (const auto self = weak.lock())
          for (const std::uint64_t id : self->ids_) self->table_->leaves(id, to);
      });
    }
    return message.slots().put(carried);
  }
  void add(std::uint64_t id) { ids_.push_back(id); }

  void seal(OutgoingMessage& message) override {
    Codec<std::vector<std::uint64_t>>::encode(message.section(section_key, true), ids_);
    sealed_ = true;
  }
  // If the call failed on this side, its streams end. If the call failed on the other side, the other side
  // has received the message, and closes the streams that its program did not take.
  void ended(const std::exception_ptr& error) override {
    if (std::exchange(over_, true)) return;
    if (error == nullptr) return;
    std::exception_ptr why = error;
    const auto known = as_error(error);
    const bool heard = known && known->execution() != Execution::not_sent, remote = is_remote(error);
    if (heard && remote) return;
    if (known && !remote) {
      const bool cut = known->kind() == ErrorKind::deadline_exceeded || known->kind() == ErrorKind::cancelled;
      why = stream_error(cut ? ErrorKind::cancelled : known->kind(),
                         std::string("the call that this stream was given to has ended: ") + known->what());
    }
    for (const std::uint64_t id : ids_) heard ? table_->stop(id, why) : table_->end(id, why);
  }

 private:
  const std::shared_ptr<StreamTable> table_;
  std::vector<std::uint64_t> ids_;
  const bool reply_;
  bool sealed_ = false, over_ = false;
};

// The streams in a received message. Its destructor closes those that the program did not take.
struct StreamTable::Received {
  std::shared_ptr<StreamTable> table;
  AgentId from;
  std::string method;  // of the received call; empty: the message is a reply
  Mutex mutex;         // items of a stream may be decoded on several threads
  std::set<std::uint64_t> left WEFT_GUARDED_BY(mutex);

  Received(std::shared_ptr<StreamTable> t, const AgentId& sender, std::string_view called,
           const std::vector<std::uint64_t>& ids)
      : table(std::move(t)), from(sender), method(called), left(ids.begin(), ids.end()) {}
  ~Received() {
    try {
      for (const std::uint64_t id : left) send_close(table->peer(from), id);
    } catch (const Error&) {
      // The agent has ended, and its streams with it.
    }
  }
};

StreamTable::StreamTable(const std::shared_ptr<AgentCore>& core)
    : core_(core), self_(core->id()), options_(core->options().streams) {}

std::shared_ptr<StreamTable> StreamTable::of(OutgoingMessage& message) {
  auto table = message.layers() == nullptr ? nullptr : message.layers()->share<StreamTable>();
  if (table == nullptr)
    throw Error(ErrorKind::failed_precondition, "a stream can be sent only in a call or its reply");
  return table;
}

StreamHome StreamTable::home(OutgoingMessage& message) const {
  // The generators of one call share its context, and so its home.
  if (const auto* known = message.slots().find<StreamHome>()) return *known;
  auto shared = std::make_shared<StreamHome>();
  StreamHome& home = *shared;
  if (auto* call = static_cast<IncomingCall*>(message.serving())) {
    home.call = call->share();
    struct OwningExecutor {
      std::shared_ptr<Executor> threads;
      SerialExecutor serial;
      explicit OwningExecutor(std::shared_ptr<Executor> t) : threads(std::move(t)), serial(*threads) {}
    };
    auto owning = std::make_shared<OwningExecutor>(call->share_executor());
    home.executor = {owning, &owning->serial};
  } else if (const auto core = core_.lock()) {
    home.executor = {core, &core->handlers()};
  }
  home.among = std::make_shared<int>();
  return message.slots().put(std::move(shared));
}

std::uint64_t StreamTable::hand_over(OutgoingMessage& message, std::shared_ptr<ServedStream> stream) {
  Entry entry;
  entry.reader = message.only_destination();
  entry.result = message.is_reply();
  const auto* call = static_cast<IncomingCall*>(message.serving());
  if (entry.reader != nullptr) {
    entry.counted_as = to_string(*entry.reader);
  } else if (const auto* route = dynamic_cast<const Route*>(message.route())) {
    entry.counted_as = route->name();
  } else {
    throw Error(ErrorKind::failed_precondition, "a stream can be sent only to a peer");
  }
  entry.stream = stream;
  std::uint64_t id = 0;
  {
    MutexLock lock(mutex_);
    if (ended_) throw Error(ErrorKind::shut_down, "this agent has shut down", Execution::not_sent);
    std::size_t& open = open_[entry.counted_as];
    if (open >= options_.max_per_peer)
      throw Error(ErrorKind::resource_exhausted,
                  std::to_string(open) + " streams to " + entry.counted_as + " are open, which is the limit",
                  Execution::not_sent);
    ++open;
    id = ++last_id_;
    stream->belongs_to(weak_from_this(), id);
    served_.emplace(id, std::move(entry));
  }
  Carried::of(message, shared_from_this()).add(id);
  // The end of the peer was reported before, so no event will end this stream.
  if (call != nullptr && call->caller_is_lost())
    end(id, stream_error(ErrorKind::peer_lost, "the peer is gone"));
  return id;
}

std::shared_ptr<StreamReader> StreamTable::receive(ValueReader value) {
  ValueReader field;
  if (value.kind() != ValueKind::record || !value.find_field(id_field, 0, field)) value.mismatch("a stream");
  const std::uint64_t id = field.get_uint();
  IncomingMessage& message = value.message();
  auto* received = message.slots().find<Received>();
  if (received == nullptr)
    throw Error(ErrorKind::failed_precondition, "a stream can be sent only in a call or its reply");
  {
    MutexLock lock(received->mutex);
    if (received->left.erase(id) == 0)
      throw Error(ErrorKind::failed_precondition,
                  "stream " + std::to_string(id) + " is not in this message, or was taken before");
  }
  const auto* answered = message.slots().find<AnsweredMethod>();
  return std::make_shared<StreamReader>(received->table->peer(received->from),
                                        answered != nullptr ? answered->name : received->method, id,
                                        received->table->window());
}

OutgoingCall StreamTable::make_call(const Peer& source, std::string_view method,
                                    std::initializer_list<std::uint64_t> arguments) {
  OutgoingCall call = source.calls().make(method, arguments.size());
  call.control = true;
  call.begin();
  std::size_t i = 0;
  for (const std::uint64_t argument : arguments) call.message().argument(i++).set_uint(argument);
  call.end();
  return call;
}

void StreamTable::send_close(const Peer& source, std::uint64_t id) {
  if (source.calls().core() == nullptr || source.calls().core()->ended()) return;
  source.calls().start(make_call(source, close_method, {id}), [](Result<PendingCall::Reply>) {});
}

Peer StreamTable::peer(const AgentId& id) const {
  auto core = core_.lock();
  if (core == nullptr) throw Error(ErrorKind::shut_down, "this agent has shut down", Execution::not_sent);
  return Peer(core, core->routes().to_name(id.name)).only(id);
}

// --- Received messages ---

void StreamTable::note(IncomingMessage& message, const AgentId& from, std::string_view method) {
  const auto section = message.section(section_key);
  if (!section) return;
  const auto ids = Codec<std::vector<std::uint64_t>>::decode(*section);
  if (ids.size() > options_.max_per_peer)
    throw Error(ErrorKind::resource_exhausted,
                "a message with " + std::to_string(ids.size()) + " streams, expected at most " +
                    std::to_string(options_.max_per_peer) + " (StreamOptions::max_per_peer)");
  message.slots().put(std::make_shared<Received>(shared_from_this(), from, method, ids));
}

void StreamTable::incoming(std::shared_ptr<IncomingCall> call, Callback next) {
  note(call->message(), call->peer().id, call->method());
  next();
}

void StreamTable::replied(IncomingMessage& message, const AgentId& from) {
  try {
    note(message, from, {});
  } catch (const Error&) {
    // Malformed: decoding the result finds no stream in it.
  }
}

// --- Streams that are served here ---

StreamTable::Entry* StreamTable::entry_of(std::uint64_t id) {
  const auto found = served_.find(id);
  return found == served_.end() ? nullptr : &found->second;
}

std::shared_ptr<ServedStream> StreamTable::find(std::uint64_t id, const IncomingCall& asked_by) {
  const AgentId& reader = asked_by.peer().id;
  MutexLock lock(mutex_);
  const Entry* entry = entry_of(id);
  if (entry == nullptr)
    throw Error(ErrorKind::not_found, "stream " + std::to_string(id) + " is not open on this agent");
  if (entry->reader == nullptr || *entry->reader != reader)
    throw Error(ErrorKind::permission_denied, "stream " + std::to_string(id) + " was given to another peer");
  return entry->stream;
}

std::shared_ptr<ServedStream> StreamTable::take(std::uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = served_.find(id);
  if (found == served_.end()) return nullptr;
  if (--open_[found->second.counted_as] == 0) open_.erase(found->second.counted_as);
  auto stream = std::move(found->second.stream);
  served_.erase(found);
  return stream;
}

template <class Which>
std::vector<std::uint64_t> StreamTable::ids_of(Which which) {
  std::vector<std::uint64_t> ids;
  MutexLock lock(mutex_);
  for (const auto& [id, entry] : served_)
    if (which(entry)) ids.push_back(id);
  return ids;
}

void StreamTable::end(std::uint64_t id, const std::exception_ptr& error) {
  if (const auto stream = take(id)) stream->end(error);
}

void StreamTable::stop(std::uint64_t id, const std::exception_ptr& error) {
  std::shared_ptr<ServedStream> stream;
  {
    MutexLock lock(mutex_);
    const Entry* entry = entry_of(id);
    if (entry == nullptr) return;
    if (entry->reader != nullptr) stream = entry->stream;
  }
  if (stream == nullptr) return end(id, error);
  stream->end(error);
}

void StreamTable::leaves(std::uint64_t id, const AgentId& to) {
  MutexLock lock(mutex_);
  if (Entry* entry = entry_of(id)) entry->reader = std::make_shared<const AgentId>(to);
}

void StreamTable::draining() {
  for (const std::uint64_t id : ids_of([](const Entry& entry) { return entry.result; }))
    stop(id, stream_error(ErrorKind::shut_down, "the agent that serves this stream is shutting down"));
}

void StreamTable::peer_gone(const AgentId& peer, const Error& reason) {
  const auto error = stream_error(reason.kind(), peer.name + ": " + reason.what());
  const auto is_of_peer = [&](const Entry& entry) {
    return entry.reader != nullptr && *entry.reader == peer;
  };
  for (const std::uint64_t id : ids_of(is_of_peer)) end(id, error);
}

void StreamTable::shut_down() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  // The pulls that wait get no reply, because the agent has ended (IncomingCall::fail).
  for (const std::uint64_t id : ids_of([](const Entry&) { return true; }))
    end(id, stream_error(ErrorKind::shut_down, "this agent has shut down"));
}

void StreamTable::serve_methods() {
  const auto core = core_.lock();
  const auto method = [&](std::string_view name, const char* signature, std::vector<std::string> parameters,
                          const char* result, auto run) {
    MethodEntry entry = described_entry({}, name, signature, std::move(parameters), result);
    entry.non_blocking = entry.control = true;
    entry.run = [weak = weak_from_this(), run](std::shared_ptr<IncomingCall> call) {
      const auto table = weak.lock();
      if (table == nullptr) return call->fail(stream_error(ErrorKind::shut_down, "this agent has shut down"));
      run(*table, call);
    };
    core->methods().serve(std::move(entry));
  };
  method(next_method, "(u64,u64,u64,u64)->any", {"u64", "u64", "u64", "u64"}, "any",
         [](StreamTable& table, const std::shared_ptr<IncomingCall>& call) {
           const auto [stream, pulls, items, bytes] =
               decode_arguments<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>>(
                   *call, std::make_index_sequence<4>{});
           table.find(stream, *call)->pull(call, pulls, items, bytes);
         });
  method(close_method, "(u64)->void", {"u64"}, "void",
         [](StreamTable& table, const std::shared_ptr<IncomingCall>& call) {
           const auto [stream] =
               decode_arguments<std::tuple<std::uint64_t>>(*call, std::make_index_sequence<1>{});
           try {
             table.find(stream, *call);
             table.end(stream, stream_error(ErrorKind::cancelled, "the reader has closed the stream"));
           } catch (const Error&) {
             // The stream has ended in the meantime.
           }
           call->reply([](ValueWriter writer) { writer.set_nil(); });
         });
}

}  // namespace detail

void install_streams(const std::shared_ptr<AgentCore>& core) {
  auto table = std::make_shared<detail::StreamTable>(core);
  core->layers().put(table);
  core->hooks().add(table);
  table->serve_methods();
}

}  // namespace weft::rpc
