#include <weft/parallel/collectives/internal/group/group_devices.h>

#include <weft/parallel/collectives/internal/group/preparation.h>
#include <weft/parallel/collectives/plan/internal/algorithms.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>
#include <utility>

namespace weft::collectives {

// The members' values before the creation of the communicator: rank 0's id, and each member's reason why it
// cannot create one.
struct Offer {
  std::string id, trouble;
};
WEFT_CODEC(Offer, id, trouble)

namespace {

using nccl::Communicator;
using nccl::TensorCollectives;
using rpc::Error;
using rpc::ErrorKind;
using rpc::Future;

// Adds some time to the timeout for NCCL. NCCL would only report a timeout, while the comparison of
// signatures, which fails first, names the missing ranks.
std::chrono::nanoseconds with_timeout(std::chrono::nanoseconds limit) {
  constexpr std::chrono::seconds more{7};
  return limit > std::chrono::nanoseconds::max() - more ? std::chrono::nanoseconds::max() : limit + more;
}

// The tag of all messages between devices. They are matched in their order; both sides compare the real
// tags.
constexpr std::uint64_t message_tag = ~std::uint64_t{0};

// The time limit for an orderly end, which needs all members: some may not reach it.
constexpr std::chrono::seconds closes_within{5};

std::string type_name(c10::Device device) { return c10::DeviceTypeName(device.type(), /*lower_case=*/true); }

}  // namespace

std::chrono::nanoseconds GroupDevices::limit_of(Timeout timeout) const {
  return timeout.value_or(group_.options().timeout);
}

// Returns nullopt if the communicator does not exist yet. Throws if it cannot be used.
std::optional<TensorCollectives> GroupDevices::found(c10::Device device) const {
  rpc::MutexLock lock(mutex_);
  if (over_) throw *over_;
  if (left_) throw *left_;
  if (!on_) return std::nullopt;
  if (on_->device != device)
    refuse("group '" + group_.name() + "': the tensors are on " + device.str() + ", expected " +
           on_->device.str() + ", the device of this member's communicator");
  return on_->ranks;
}

// --- The communicator ---

// Marks the communicator as being created. Returns the future of its creation.
Future<void> GroupDevices::claim(c10::Device device) {
  not_made_ = nullptr;
  return on_.emplace(OnDevice{device, rpc::Promise<void>(loop())}).promise.future();
}

Future<void> GroupDevices::prepare(c10::Device device, Timeout timeout, const rpc::Site& site) {
  // Only this thread knows its current device. If a device does not exist, make_offer() reports it to all
  // members, on a thread that may call CUDA.
  if (!device.has_index())
    if (auto current = rpc::capture([&] { return nccl::existing(device); }); current.ok())
      device = current.value();
  std::optional<Future<void>> making;
  const auto there = rpc::capture([&] {
    rpc::MutexLock lock(mutex_);
    if (over_) throw *over_;
    if (!on_) {
      making = claim(device);
    } else if (on_->device != device || !on_->ranks) {
      throw Error(ErrorKind::failed_precondition, "group '" + group_.name() + "': prepare(" + device.str() +
                                                      ") after prepare(" + on_->device.str() +
                                                      "), expected one call: a group uses one device");
    }
  });
  if (!there.ok() || !making) return Future<void>::made(rpc::Result<void>(there));
  make(device, limit_of(timeout), site);
  return std::move(*making);
}

// Runs in the background: loading NCCL and creating its id may block, and the caller may be a loop.
void GroupDevices::make(c10::Device device, std::chrono::nanoseconds limit, const rpc::Site& site) {
  devices_->run([this, alive = group_.shared_from_this(), device, limit, site,
                 round = values_.reserve_rounds(1)] { make_offer(device, limit, site, round); });
}

void GroupDevices::make_offer(c10::Device device, std::chrono::nanoseconds limit, const rpc::Site& site,
                              std::uint64_t round) {
  Offer offer;
  const auto can = rpc::capture([&] {
    const nccl::Device here = devices_->of(nccl::existing(device));
    if (group_.rank() != 0) return;
    const nccl::UniqueId id = Communicator::unique_id(*here.api);
    offer.id.assign(id.bytes.begin(), id.bytes.end());
  });
  if (!can.ok()) offer.trouble = group_.text_of(can.error());
  values_.give({round}, "prepare(" + type_name(device) + ")", site, rpc::pack(offer), true, limit)
      .then([this, alive = group_.shared_from_this(), device,
             limit](rpc::Result<std::vector<rpc::Buffer>>&& offers) {
        auto begun = rpc::capture([&] { create(device, std::move(offers).get(), limit); });
        if (!begun.ok()) made(begun.error());
      });
}

void GroupDevices::create(c10::Device device, const std::vector<rpc::Buffer>& offers,
                          std::chrono::nanoseconds limit) {
  nccl::UniqueId id;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const auto offer = rpc::unpack<Offer>(offers[rank]);
    if (!offer.trouble.empty())
      throw Error(ErrorKind::unsupported, "group '" + group_.name() + "' has no NCCL: rank " +
                                              std::to_string(rank) + " (" + group_.members()[rank].name +
                                              "): " + offer.trouble);
    if (rank == 0 && offer.id.size() == id.bytes.size())
      std::copy(offer.id.begin(), offer.id.end(), id.bytes.begin());
  }
  nccl::CommunicatorOptions options;
  options.name = group_.name();
  options.timeout = limit;
  options.on_failure = [this, weak = group_.weak_from_this()](const Error& error) {
    if (const auto alive = weak.lock()) failure_.fail(error);
  };
  auto creation =
      Communicator::create(devices_->of(device), id, group_.size(), group_.rank(), std::move(options))
          .then([this, alive = group_.shared_from_this(), device,
                 limit](rpc::Result<Communicator::Ptr>&& created) {
            if (created.ok()) {
              connect(device, created.value(), limit);
            } else {
              failure_.fail(created.error());  // other members may have created theirs
              made(created.error());
            }
            return rpc::Result<void>{};
          });
  bool over = false;
  {
    rpc::MutexLock lock(mutex_);
    over = over_.has_value();
    if (!over && on_ && on_->communicator == nullptr) on_->creation = std::move(creation);
  }
  if (over) creation.cancel();
}

// The first collective of a communicator connects its ranks, which takes long. It runs here, so that the
// first collective of the program does not wait for it.
void GroupDevices::connect(c10::Device device, Communicator::Ptr communicator,
                           std::chrono::nanoseconds limit) {
  {
    rpc::MutexLock lock(mutex_);
    on_->communicator = communicator;  // end() aborts it from now on
  }
  devices_->run([this, alive = group_.shared_from_this(), device, communicator, limit] {
    const TensorCollectives ranks(communicator, device, devices_->capture());
    auto begun = rpc::capture([&] {
      {
        rpc::MutexLock lock(mutex_);
        if (over_) throw *over_;
      }
      return ranks.connect(limit);
    });
    if (!begun.ok()) {
      if (!communicator->failure()) failure_.fail(begun.error());
      return made(begun.error());
    }
    std::move(begun).get().then([this, alive, ranks](rpc::Result<void>&& connected) {
      connected.ok() ? made(ranks) : made(connected.error());
    });
  });
}

void GroupDevices::made(rpc::Result<TensorCollectives>&& ranks) {
  rpc::Result<void> result;
  std::optional<rpc::Promise<void>> promise;
  Communicator::Ptr unused;
  {
    rpc::MutexLock lock(mutex_);
    promise.emplace(std::move(on_->promise));
    on_->creation = {};
    if (ranks.ok() && !over_) {
      on_->ranks.emplace(std::move(ranks).get());
    } else {
      unused = std::move(on_->communicator);
      on_.reset();
      not_made_ = over_ ? std::make_exception_ptr(*over_) : ranks.error();
      result = not_made_;
    }
  }
  changed_.notify_all();
  if (unused != nullptr) (void)unused->abort("its group has ended");
  if (*promise) promise->complete(std::move(result));
}

void GroupDevices::wait_until_made() {
  rpc::MutexLock lock(mutex_);
  changed_.wait(lock, [&]() WEFT_REQUIRES(mutex_) { return over_ || !on_ || on_->ranks; });
  if (over_) throw *over_;
  if (!on_) std::rethrow_exception(not_made_);
}

GroupDevices::~GroupDevices() {
  if (on_ && on_->ranks && !over_) close(on_->communicator);
}

// NCCL finalizes a communicator that all ranks end. An abort would be an error on ranks that still use
// theirs.
void GroupDevices::close(const Communicator::Ptr& communicator) {
  auto closing = rpc::capture([&] { return communicator->close(closes_within); });
  if (closing.ok()) return devices_->add_closing(std::move(closing).get());
  (void)communicator->abort("its group has ended");
}

void GroupDevices::member_left(const Error& error) {
  {
    rpc::MutexLock lock(mutex_);
    if (over_ || left_) return;
    left_ = error;
  }
  if (!busy()) stop(error);
}

// If the agent ends, communicators that are being created are not polled any more, and dead members are not
// waited for.
void GroupDevices::stop(const Error& error) {
  Communicator::Ptr communicator;
  std::optional<rpc::Promise<void>> promise;
  Future<void> creation;
  bool orderly = error.kind() == ErrorKind::shut_down && !busy();
  {
    rpc::MutexLock lock(mutex_);
    if (over_) return;
    over_ = error;
    orderly = orderly && on_ && on_->ranks;
    if (on_) {
      communicator = on_->communicator;
      promise.emplace(std::move(on_->promise));
      creation = std::move(on_->creation);
    }
  }
  changed_.notify_all();
  creation.cancel();
  if (orderly) {
    close(communicator);
  } else if (communicator != nullptr) {
    (void)communicator->abort(error.what());
  }
  if (promise && *promise) promise->fail(error);
}

void GroupDevices::end_if_left() {
  std::optional<Error> left;
  {
    rpc::MutexLock lock(mutex_);
    left = left_;
  }
  if (left) stop(*left);
}

// --- Collectives and messages ---

// Whether the calling thread must not block, because other tasks need it, for example to detect a death.
bool GroupDevices::must_not_block() const {
  const auto& loops = group_.agent()->loops();
  return rpc::OwnedThread::here() || std::any_of(loops.begin(), loops.end(), [](const auto& loop) {
           return loop->runs_on_this_thread();
         });
}

const std::shared_ptr<rpc::Loop>& GroupDevices::loop() const { return group_.agent()->loops().front(); }

// Returns the group's own error if it has one, because it is the most informative; otherwise `error`.
std::exception_ptr GroupDevices::reason(std::exception_ptr error) const {
  rpc::MutexLock lock(mutex_);
  return over_ ? std::make_exception_ptr(*over_) : error;
}

Future<void> GroupDevices::launch(c10::Device device, const std::function<void()>& compare,
                                  const std::function<Future<void>(const TensorCollectives&)>& put) {
  bool begun = compare == nullptr;
  auto launched = rpc::capture([&] {
    const auto ranks = found(device);
    return put(ranks->announcing([&] {
      std::lock_guard order(order_);
      if (!std::exchange(begun, true)) compare();
      return ranks->communicator()->device().order->reserve();
    }));
  });
  if (!launched.ok() && begun) failure_.fail(launched.error());  // all others have started
  return std::move(launched).get();
}

// --- Collectives ---

namespace {

// The comparison of an all_to_all_v is an all_to_all of sizes: each rank learns the number of elements that
// the others send to it.
void compare_sizes(GroupMember& group, Collective& collective, const CollectiveCall& call) {
  struct Sizes {
    std::vector<std::int64_t> sent, announced, expected;
  };
  const auto sizes = std::make_shared<Sizes>();
  for (const at::Tensor& input : call.inputs) sizes->sent.push_back(input.numel());
  for (const at::Tensor& output : call.outputs) sizes->expected.push_back(output.numel());
  sizes->announced.resize(group.members().size());
  collective.layout.operation = Operation::all_to_all;
  collective.layout.blocks = collective.layout.from = even_blocks(group.members().size(), group.size());
  collective.memory = {.input = reinterpret_cast<const std::byte*>(sizes->sent.data()),
                       .output = reinterpret_cast<std::byte*>(sizes->announced.data()),
                       .item_size = sizeof(std::int64_t),
                       .keeper = sizes};
  collective.finish = [sizes, group = group.shared_from_this(), text = collective.text()] {
    for (std::size_t rank = 0; rank < sizes->expected.size(); ++rank)
      if (sizes->announced[rank] != sizes->expected[rank])
        refuse(text + ": " + group->describe(static_cast<int>(rank)) + " sends " +
               std::to_string(sizes->announced[rank]) + " elements to " + group->describe(group->rank()) +
               ", which expects " + std::to_string(sizes->expected[rank]));
  };
}

}  // namespace

// A collective without elements, by which the ranks compare their signatures.
Collective GroupDevices::comparison_of(const CollectiveCall& call) const {
  Collective comparison;
  comparison.signature = signature_of(call);
  comparison.signature.device = call.first()->device().type();
  comparison.site = call.site;
  comparison.timeout = call.timeout;
  if (call.operation == Operation::all_to_all_v) compare_sizes(group_, comparison, call);
  return comparison;
}

Future<void> GroupDevices::run(CollectiveCall call) {
  std::vector<at::Tensor> inputs;  // copies
  auto comparison = rpc::capture([&] {
    check(call, group_.rank(), group_.size());
    if (copies_of(call, group_.rank()) != Copies::nothing) {
      for (const at::Tensor& input : call.inputs) inputs.push_back(input.clone());
      call.inputs = inputs;
    }
    return comparison_of(call);
  });
  if (!comparison.ok())
    return collectives_.decline(call.operation, call.first()->device().type(), call.site, comparison.error());
  return run(call, std::move(comparison).get());
}

Future<void> GroupDevices::run(const CollectiveCall& call, Collective comparison) {
  const c10::Device device = call.first()->device();
  const auto limit = limit_of(call.timeout);
  const std::string what = comparison.text();
  std::vector<Future<void>> sides;
  bool compares = false;
  const auto begun = rpc::capture([&] {
    std::function<void()> compare = [&] {
      compares = true;
      note_writes(call.outputs);
      sides.push_back(compared(collectives_.start(std::move(comparison))));
    };
    if (!found(device)) {
      if (must_not_block())
        throw Error(ErrorKind::failed_precondition, what + " creates the communicator of group '" +
                                                        group_.name() +
                                                        "' and blocks until all ranks have joined it, which "
                                                        "a thread of an agent must not do: await prepare(" +
                                                        device.str() + ") first");
      std::exchange(compare, nullptr)();
      bool mine = false;
      {
        rpc::MutexLock lock(mutex_);
        // If the creation has failed here, other members may still wait for it.
        mine = !on_ && not_made_ == nullptr;
        if (mine) (void)claim(device);
      }
      if (mine) make(device, limit, call.site);
      wait_until_made();
    }
    sides.push_back(launch(device, compare, [&](const TensorCollectives& ranks) {
      return ranks.run(call, with_timeout(limit));
    }));
  });
  if (!begun.ok()) {
    if (!compares) (void)collectives_.decline(call.operation, device.type(), call.site, begun.error());
    return Future<void>::made(rpc::Result<void>(reason(begun.error())));
  }
  return when_both(std::move(sides), what);
}

Future<void> GroupDevices::exchange(std::vector<PointToPoint> messages, Timeout timeout,
                                    const rpc::Site& site) {
  std::vector<Future<void>> sides;
  bool compares = false;
  const std::string what = "messages between devices at " + site.text();
  const auto begun = rpc::capture([&] {
    const c10::Device device = messages.front().tensor.device();
    if (!found(device))
      throw Error(
          ErrorKind::failed_precondition,
          what + ": group '" + group_.name() + "' is not prepared for them: prepare(" + device.str() + ")");
    const auto compare = [&] {
      compares = true;
      for (const PointToPoint& each : messages) {
        if (each.kind == PointToPoint::Kind::recv) note_writes({&each.tensor, 1});
        const GroupMessage message{.tag = message_tag,
                                   .type = type_of(each.tensor, group_.options().checks) + " on " +
                                           type_name(device) + ", tag " + std::to_string(each.tag),
                                   .site = site,
                                   .bytes = {},
                                   .timeout = timeout};
        if (each.kind == PointToPoint::Kind::send) {
          sides.push_back(compared(messages_.send(each.peer, message)));
        } else {
          sides.push_back(compared(messages_.receive(each.peer, message).then([](rpc::Result<int>&& sender) {
            return sender.ok() ? rpc::Result<void>{} : rpc::Result<void>(sender.error());
          })));
        }
      }
    };
    sides.push_back(launch(device, compare, [&](const TensorCollectives& ranks) {
      return ranks.exchange(messages, with_timeout(limit_of(timeout)));
    }));
  });
  if (!begun.ok()) {
    for (const PointToPoint& each : messages)
      if (!compares) messages_.decline(each.kind, each.peer, message_tag, site, begun.error());
    return Future<void>::made(rpc::Result<void>(reason(begun.error())));
  }
  return when_both(std::move(sides), what);
}

// If ranks differ, the launch cannot be taken back.
Future<void> GroupDevices::compared(Future<void> comparison) const {
  return std::move(comparison).then([this, alive = group_.shared_from_this()](rpc::Result<void>&& alike) {
    if (!alike.ok()) failure_.fail(alike.error());
    return std::move(alike);
  });
}

// Tensors are borrowed until both sides have released them.
Future<void> GroupDevices::when_both(std::vector<Future<void>> sides, const std::string& what) {
  ++in_flight_;
  rpc::Promise<void> promise(loop());
  promise.on_cancel([this, weak = group_.weak_from_this(), what] {
    if (const auto alive = weak.lock())
      failure_.abort("rank " + std::to_string(group_.rank()) + " aborted " + what);
  });
  auto future = promise.future();
  rpc::when_all(std::move(sides))
      .then([this, alive = group_.shared_from_this(),
             promise = std::move(promise)](rpc::Result<void>&& result) mutable {
        if (--in_flight_ == 0) end_if_left();
        if (result.ok()) return promise.complete(std::move(result));
        // after_dumps() runs this in the group's turn, after a failure of the group itself that waits for
        // its dumps.
        failure_.after_dumps([this, error = result.error(), promise = std::move(promise)]() mutable {
          promise.fail(reason(error));
        });
      });
  return future;
}

}  // namespace weft::collectives
