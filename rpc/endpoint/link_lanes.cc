#include <weft/rpc/endpoint/link_lanes.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <sys/random.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::uint16_t max_lanes = 16;

}  // namespace

// A connection that becomes a lane. Its functions run on its own loop, except cancel().
class LinkLanes::Dial final : public ConnectionObserver, public std::enable_shared_from_this<Dial> {
 public:
  Dial(std::weak_ptr<LinkLanes> lanes, std::shared_ptr<Loop> home, std::shared_ptr<Loop> loop,
       std::size_t index)
      : lanes_(std::move(lanes)), home_(std::move(home)), loop_(std::move(loop)), index_(index) {}

  const std::shared_ptr<Loop>& loop() const { return loop_; }  // any thread

  void begin(std::shared_ptr<Connection> connection, const LaneInfo& info) {
    connection_ = std::move(connection);
    if (cancelled_) return drop();
    OutboundFrame frame = OutgoingMessage::lane(info);
    frame.sent = [self = shared_from_this()] {
      self->said_ = true;
      self->become_lane();
    };
    connection_->send(std::move(frame));
    connection_->start(shared_from_this());
  }
  // The hello of the other side, which sends it before it has received the lane frame.
  void on_frame(InboundFrame&& frame) override {
    if (frame.prefix.kind != FrameKind::hello)
      throw Error(ErrorKind::protocol_error,
                  "bad frame: expected a Hello as the reply to a lane, found a frame of kind " +
                      std::to_string(static_cast<int>(frame.prefix.kind)));
    answered_ = true;
    become_lane();
  }
  void on_closed(const Error& reason) override {
    connection_ = nullptr;
    tell([why = std::string(reason.what())](LinkLanes& lanes, std::size_t) { lanes.give_up(why); });
  }
  // Called on `home`. If the loop is the same, drops the connection at once, because the program's io_context
  // may never run again.
  void cancel() {
    if (loop_ == home_) return drop();
    loop_->post([self = shared_from_this()] { self->drop(); });
  }

 private:
  void drop() {
    cancelled_ = true;
    if (const auto connection = std::exchange(connection_, nullptr))
      connection->close(Error(ErrorKind::aborted, "the connection no longer needs this lane"));
  }
  void become_lane() {
    if (!said_ || !answered_ || connection_ == nullptr) return;
    const auto connection = connection_;
    auto stream = connection->take_stream();
    if (stream == nullptr)
      return connection->close(Error(ErrorKind::protocol_error, "bad frame: more than a Hello on a lane"));
    connection_ = nullptr;
    tell([lane = Lanes::Stream{stream.release(), {connection->loop()}}](
             LinkLanes& lanes, std::size_t index) mutable { lanes.collect(index, std::move(lane)); });
  }
  template <class F>
  void tell(F f) {
    home_->post([weak = lanes_, index = index_, f = std::move(f)]() mutable {
      if (const auto lanes = weak.lock()) f(*lanes, index);
    });
  }

  const std::weak_ptr<LinkLanes> lanes_;
  const std::shared_ptr<Loop> home_, loop_;
  const std::size_t index_;
  std::shared_ptr<Connection> connection_;
  bool said_ = false, answered_ = false, cancelled_ = false;
};

LinkLanes::LinkLanes(std::shared_ptr<AgentCore> core, std::shared_ptr<Connection> connection, bool dialled)
    : core_(std::move(core)), dialled_(dialled), connection_(std::move(connection)) {
  if (core_->options().lanes == 0 || !connection_->takes_lanes()) return;
  if (::getrandom(key_.data(), sizeof key_, 0) != static_cast<ssize_t>(sizeof key_)) {
    core_->log().write(LogLevel::warning,
                       connection_->describe() + ": no lanes: the system has no random key",
                       {{log_fields::connection, connection_->describe()}});
    return;
  }
  offered_ = static_cast<std::uint16_t>(std::min<std::size_t>(core_->options().lanes, max_lanes));
}

void LinkLanes::expect(std::size_t count) {
  streams_.resize(count);
  missing_ = count;
  timeout_ =
      connection_->loop()->schedule(later(connection_->loop()->now(), core_->options().handshake_timeout),
                                    while_alive(this, [](LinkLanes& self) {
                                      self.timeout_ = 0;
                                      self.give_up("the other side did not confirm them in time");
                                    }));
}

void LinkLanes::dial(const HelloInfo& theirs, const Address& address, const std::string& agent) {
  const std::uint16_t count = std::min(offered_, theirs.lanes);
  Transport* transport = core_->transport(address.scheme);
  if (count == 0 || address.scheme != "tcp" || transport == nullptr || core_->ended()) return;
  expect(count);
  for (std::uint16_t i = 0; i < count; ++i) {
    auto dial = dials_.emplace_back(
        std::make_shared<Dial>(weak_from_this(), connection_->loop(), core_->pick_loop(), i));
    const LaneInfo info{theirs.lane_key, i, count};
    try {
      transport->connect(address, dial->loop(), core_->connection_options(agent),
                         [dial, info](Result<std::shared_ptr<Connection>> made) {
                           try {
                             dial->begin(std::move(made).get(), info);
                           } catch (const std::exception& error) {
                             dial->on_closed(Error(ErrorKind::unavailable, error.what()));
                           }
                         });
    } catch (const Error& error) {
      return give_up(error.what());
    }
  }
}

void LinkLanes::peer_known(const std::string& identity) {
  identity_ = identity;
  auto early = std::exchange(early_, {});
  core_->links().early_lanes_gone(early.size());
  for (auto& [info, from, lane] : early) take(info, from, std::move(lane));
}

void LinkLanes::take(const LaneInfo& info, const std::string& identity, Lanes::Stream lane) {
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorKind::protocol_error, "bad frame: a lane " + why);
  };
  if (connection_ == nullptr) return;
  if (identity_ && identity != *identity_)  // a lane from another peer that knows the key is refused
    return core_->log().write_some(
        "lanes refused", connection_->loop(),
        connection_->describe() + ": a lane of another peer was refused",
        {{log_fields::connection, connection_->describe()}, {log_fields::identity, identity}});
  if (dialled_ || open_) refuse("that this connection does not expect");
  if (!identity_) {  // the hello arrives over another connection and may be later than the lane
    if (early_.size() == offered_)
      refuse("beyond the " + std::to_string(offered_) + " lanes that were offered");
    if (!core_->links().keep_early_lane())
      return core_->log().write(
          LogLevel::debug,
          connection_->describe() + ": a lane was dropped: too many lanes arrived before their hello",
          {{log_fields::connection, connection_->describe()}});
    early_.push_back({info, identity, std::move(lane)});
    return;
  }
  if (info.count == 0 || info.count > offered_ || info.index >= info.count)
    refuse("with index " + std::to_string(info.index) + " of " + std::to_string(info.count) +
           ": expected at most the " + std::to_string(offered_) + " lanes that were offered");
  if (streams_.empty()) expect(info.count);
  if (streams_.size() != info.count || streams_[info.index])
    refuse("with index " + std::to_string(info.index) + " of " + std::to_string(info.count) +
           ": expected each index of " + std::to_string(streams_.size()) + " lanes once");
  collect(info.index, std::move(lane));
}

void LinkLanes::collect(std::size_t index, Lanes::Stream lane) {
  if (connection_ == nullptr || missing_ == 0) return;  // the lanes were given up meanwhile
  streams_[index] = std::move(lane);
  --missing_;
  open();
}

void LinkLanes::on_frame(const LaneInfo& info) {
  if (connection_ == nullptr) return;
  if (dialled_) {
    if (given_up_) return;  // given up meanwhile; the other side detects that its lanes have closed
    if (told_ || info.count != streams_.size() || streams_.empty())
      throw Error(ErrorKind::protocol_error, "bad frame: lanes that were not requested");
    told_ = true;
    return open();
  }
  if (!open_) throw Error(ErrorKind::protocol_error, "bad frame: it uses lanes that do not exist");
  connection_->use_lanes();
}

void LinkLanes::open() {
  if (missing_ != 0 || (dialled_ && !told_)) return;
  open_ = true;
  dials_.clear();
  connection_->loop()->cancel(std::exchange(timeout_, 0));
  const auto count = static_cast<std::uint16_t>(streams_.size());
  connection_->set_lanes(std::make_unique<Lanes>(connection_->loop(), std::exchange(streams_, {})));
  if (dialled_) connection_->use_lanes();
  AgentCounters::count(core_->counters().lanes_made, count);
  connection_->send(OutgoingMessage::lane({{}, 0, count}));
}

void LinkLanes::give_up(const std::string& why) {
  if (connection_ == nullptr || open_ || streams_.empty()) return;
  core_->log().write(LogLevel::debug, connection_->describe() + ": no lanes: " + why,
                     {{log_fields::connection, connection_->describe()}});
  connection_->loop()->cancel(std::exchange(timeout_, 0));
  given_up_ = true;
  missing_ = 0;
  streams_.clear();
  for (const auto& dial : std::exchange(dials_, {})) dial->cancel();
}

void LinkLanes::end() {
  if (connection_ == nullptr) return;
  give_up("the connection has ended");
  core_->links().early_lanes_gone(std::exchange(early_, {}).size());
  connection_ = nullptr;
}

}  // namespace weft::rpc
