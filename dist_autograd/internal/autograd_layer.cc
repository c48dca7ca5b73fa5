#include <weft/dist_autograd/internal/autograd_layer.h>

#include <weft/dist_autograd/internal/backward_service.h>
#include <weft/dist_autograd/internal/message_part.h>
#include <weft/dist_autograd/module/internal/module_service.h>
#include <weft/dist_autograd/pass.h>
#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/tensor_hook.h>

#include <algorithm>

namespace weft::dist_autograd {
namespace {

// If a release gets no reply, it is repeated after waits that double, for half a minute in total.
constexpr auto first_wait_to_tell = std::chrono::milliseconds{100};
constexpr int max_tellings = 8;

// Whether the receiver may not have received a call: it did not reply, or had no capacity for the call.
bool was_lost(const std::exception_ptr& error) {
  return !rpc::is_remote(error) || rpc::error_kind(error) == rpc::ErrorKind::resource_exhausted;
}

// A served call counts as one of the pass until it has completed.
class Serving {
 public:
  explicit Serving(std::shared_ptr<PassState> pass) : pass_(std::move(pass)) {
    pass_->call_began(PassState::Direction::incoming);
  }
  ~Serving() { pass_->call_ended(PassState::Direction::incoming); }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;

 private:
  std::shared_ptr<PassState> pass_;
};

}  // namespace

AutogradLayer::AutogradLayer(std::shared_ptr<rpc::AgentCore> core)
    : core_(std::move(core)), references_(rref::RRefLayer::of(*core_)) {}

std::shared_ptr<AutogradLayer> AutogradLayer::of(const rpc::CallHost& host) {
  auto layer = host.layers().share<AutogradLayer>();
  if (layer == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "this agent was created without distributed autograd: pass dist_autograd::layers() to "
                     "its constructor");
  return layer;
}

rpc::Peer AutogradLayer::peer(const rpc::AgentId& agent) { return references_->peer(agent); }

std::shared_ptr<PassState> AutogradLayer::create() {
  rpc::MutexLock lock(mutex_);
  const PassId id{core_->id().incarnation, ++next_};
  return passes_[id] = std::make_shared<PassState>(shared_from_this(), id);
}

std::shared_ptr<PassState> AutogradLayer::find(const PassId& id) {
  rpc::MutexLock lock(mutex_);
  const auto found = passes_.find(id);
  if (found != passes_.end()) return found->second;
  check_not_failed(id);
  throw rpc::Error(rpc::ErrorKind::not_found, to_string(id) + " does not exist on " + core_->id().name +
                                                  ": it was released, or never reached this agent");
}

void AutogradLayer::check_not_failed(const PassId& id) const {
  if (const auto* cause = failed_.find(id)) std::rethrow_exception(*cause);
}

std::shared_ptr<PassState> AutogradLayer::find_if_known(const PassId& id) {
  rpc::MutexLock lock(mutex_);
  const auto found = passes_.find(id);
  return found == passes_.end() ? nullptr : found->second;
}

std::shared_ptr<PassState> AutogradLayer::join(const PassId& id, const rpc::AgentId& from,
                                               std::uint64_t oldest) {
  // No other agent has the incarnation of a connected peer (rpc::Sessions).
  if (from.incarnation != id.origin) oldest = 0;
  if (oldest > id.number)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     to_string(id) + " has ended: its message names a later pass as the oldest one");
  rpc::MutexLock lock(mutex_);
  if (const auto found = passes_.find(id); found != passes_.end()) return found->second;
  bool ended = true;
  if (is_own(id)) {
    if (id.number > next_)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, to_string(id) + " was never created");
  } else {
    if (oldest != 0) ended_.add(id.origin).first.insert_below(oldest);
    const auto* numbers = ended_.find(id.origin);
    ended = numbers != nullptr && numbers->contains(id.number);
  }
  if (ended) {
    check_not_failed(id);
    throw rpc::Error(rpc::ErrorKind::failed_precondition, to_string(id) + " was released");
  }
  return passes_[id] = std::make_shared<PassState>(shared_from_this(), id);
}

bool AutogradLayer::has_ended(const PassId& id) const {
  rpc::MutexLock lock(mutex_);
  if (is_own(id)) return id.number <= next_ && !passes_.contains(id);
  const auto* numbers = ended_.find(id.origin);
  return numbers != nullptr && numbers->contains(id.number);
}

std::uint64_t AutogradLayer::oldest_beside(const PassId& id) const {
  if (!is_own(id)) return 0;
  rpc::MutexLock lock(mutex_);
  const auto oldest = passes_.lower_bound(PassId{id.origin, 0});
  return oldest != passes_.end() ? std::min(oldest->first.number, id.number) : id.number;
}

std::size_t AutogradLayer::remembered() const {
  rpc::MutexLock lock(mutex_);
  std::size_t ranges = 0;
  for (const auto& [origin, ended] : ended_) ranges += ended.ranges();
  return ranges;
}

void AutogradLayer::enroll(rpc::OutgoingCall& call, const std::shared_ptr<PassState>& pass, bool backward) {
  if (const auto* already = call.slots().find<InPass>()) {
    if (already->pass == pass) return;
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "a call in two passes: " + to_string(already->pass->id()) + " and " + to_string(pass->id()));
  }
  if (!backward) pass->check_open();
  call.slots().put(std::make_shared<InPass>(InPass{pass}));
  call.add_part(std::make_shared<MessagePart>(pass, std::nullopt, backward));
}

bool AutogradLayer::may_release(const PassId& id, const rpc::AgentId& sender) const {
  if (sender.incarnation == id.origin) return true;
  std::shared_ptr<PassState> pass;
  {
    rpc::MutexLock lock(mutex_);
    const auto found = passes_.find(id);
    if (found != passes_.end()) pass = found->second;
  }
  return pass != nullptr && pass->met().contains(sender);
}

void AutogradLayer::release(const PassId& id, std::exception_ptr error) {
  std::shared_ptr<PassState> pass;
  {
    rpc::MutexLock lock(mutex_);
    if (auto node = passes_.extract(id)) pass = std::move(node.mapped());
    if (pass != nullptr && error != nullptr) failed_.add(id, error);
    if (!is_own(id)) {
      auto& numbers = ended_.add(id.origin).first;
      numbers.insert(id.number);
      numbers.keep_latest(max_ranges);
    }
  }
  if (pass == nullptr) return;
  pass->end(error);
  if (core_->ended()) return;
  const std::string text = error == nullptr ? std::string() : core_->hooks().text_of(error);
  for (const rpc::AgentId& other : pass->met())
    if (other != core_->id()) notify_released(other, id, text, 0);
}

// Repeats a release that gets no reply: a message may be lost if its connection ends. If the other agent has
// another connection to this agent, or gets one before it detects the end, it never considers this agent
// lost.
void AutogradLayer::notify_released(const rpc::AgentId& to, const PassId& id, const std::string& error,
                                    int attempt) {
  if (core_->ended()) return;
  const auto answered = [weak = weak_from_this(), to, id, error, attempt](rpc::Result<void>&& answer) {
    const auto self = weak.lock();
    if (answer.ok() || self == nullptr || !was_lost(answer.error()) || attempt == max_tellings) return;
    const auto loop = self->core_->pick_loop();
    loop->post([loop, weak, to, id, error, attempt] {
      loop->schedule(rpc::later(loop->now(), first_wait_to_tell * (1 << attempt)),
                     [weak, to, id, error, attempt] {
                       if (const auto again = weak.lock()) again->notify_released(to, id, error, attempt + 1);
                     });
    });
  };
  try {
    peer(to).call<&BackwardService::release>(id, error).then(answered);
  } catch (const rpc::Error&) {
    // The peer is lost, or this agent is ending: the pass ends there without a notification.
  }
}

std::size_t AutogradLayer::live_passes() const {
  rpc::MutexLock lock(mutex_);
  return passes_.size();
}

std::size_t AutogradLayer::live_backwards() const {
  rpc::MutexLock lock(mutex_);
  return static_cast<std::size_t>(std::count_if(passes_.begin(), passes_.end(),
                                                [](const auto& pass) { return pass.second->in_backward(); }));
}

void AutogradLayer::stats(rpc::LayerStats& to) const {
  to["dist_autograd.passes"] = live_passes();
  to["dist_autograd.backwards"] = live_backwards();
}

void AutogradLayer::incoming(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next) {
  const auto value = call->message().section(section_key);
  if (!value) return next();
  const auto section = rpc::Codec<PassSection>::decode(*value);
  const auto pass = join(section.pass, call->peer().id, section.oldest);
  if (!section.backward) pass->check_open();
  pass->meet(call->peer().id);
  if (section.wants_finalize) pass->hooks().note_wants_finalize();
  call->slots().put(std::make_shared<InPass>(InPass{pass}));
  call->slots().put(std::make_shared<Serving>(pass));
  call->slots().put(std::make_shared<tensor::WithGrad>());
  call->add_part(std::make_shared<MessagePart>(pass, call->peer().id, section.backward));
  next();
}

void AutogradLayer::nested(rpc::CallContext& parent, rpc::OutgoingCall& child) {
  if (const auto* in = parent.slots().find<InPass>()) enroll(child, in->pass);
}

// A pass of the lost agent in which this worker has met only other workers ends when these report its end.
void AutogradLayer::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  std::vector<PassId> lost;
  {
    rpc::MutexLock lock(mutex_);
    for (const auto& [id, pass] : passes_)
      if (pass->met().contains(peer)) lost.push_back(id);
  }
  // If the whole job has failed, its error is the cause.
  const auto failed = core_->job_error();
  for (const PassId& id : lost)
    release(id, failed ? std::make_exception_ptr(*failed) : participant_lost(id, peer, reason.what()));
}

void AutogradLayer::shut_down() {
  std::map<PassId, std::shared_ptr<PassState>> passes;
  {
    rpc::MutexLock lock(mutex_);
    passes.swap(passes_);
  }
  const auto error =
      std::make_exception_ptr(rpc::Error(rpc::ErrorKind::shut_down, "this agent has shut down"));
  for (const auto& [id, pass] : passes) pass->end(error);
}

rpc::Layers layers(tensor::DeviceOptions devices) {
  rpc::Layers all = tensor::layers(std::move(devices));
  for (auto& layer : rref::layers()) all.push_back(std::move(layer));
  all.push_back([](rpc::Agent& agent) {
    auto layer = std::make_shared<AutogradLayer>(agent.core());
    agent.core()->layers().put(layer);
    agent.core()->hooks().add(layer);
    auto service = std::make_shared<BackwardService>();
    service->layer = layer;
    agent.serve(service);
    agent.serve(std::make_shared<ModuleService>());
    add_sizers(rref::RRefLayer::of(*agent.core())->sizes());
  });
  return all;
}

}  // namespace weft::dist_autograd
