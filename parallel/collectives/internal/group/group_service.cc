#include <weft/parallel/collectives/internal/group/group_service.h>

namespace weft::collectives {

void GroupService::data(rpc::CallContext& call, GroupId group, std::uint64_t sequence, std::uint32_t label,
                        std::uint64_t hash, rpc::Buffer bytes) {
  const std::size_t size = bytes.size();
  (void)layer->deliver(
      group, size,
      [from = call.peer().id, sequence, label, hash, bytes = std::move(bytes)](GroupCore& core) mutable {
        core.data(from, sequence, label, hash, std::move(bytes));
      });
}

namespace {

// f(core) delivers a message; the future completes when the message has been received.
template <class F>
rpc::Future<void> deliver_message(CollectivesLayer& layer, GroupId group, std::size_t size, F f) {
  const auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  const auto refused = layer.deliver(group, size, [promise, f = std::move(f)](GroupCore& core) mutable {
    f(core).then([promise](rpc::Result<void>&& taken) { promise->complete(std::move(taken)); });
  });
  if (refused) promise->fail(*refused);
  return future;
}

}  // namespace

rpc::Future<void> GroupService::message(rpc::CallContext& call, GroupId group, std::uint64_t tag,
                                        std::string type, rpc::Buffer bytes) {
  const std::size_t size = type.size() + bytes.size();
  return deliver_message(
      *layer, group, size,
      [from = call.peer().id, tag, type = std::move(type), bytes = std::move(bytes)](
          GroupCore& core) mutable { return core.message(from, tag, std::move(type), std::move(bytes)); });
}

rpc::Future<void> GroupService::lent_message(rpc::CallContext& call, GroupId group, std::uint64_t tag,
                                             std::string type, std::uint64_t offset, std::uint64_t bytes) {
  const std::size_t size = type.size();
  return deliver_message(
      *layer, group, size,
      [from = call.peer().id, tag, type = std::move(type), offset, bytes](GroupCore& core) mutable {
        return core.lent_message(from, tag, std::move(type), offset, bytes);
      });
}

rpc::Future<std::vector<rpc::Buffer>> GroupService::give(rpc::CallContext& call, GroupId group,
                                                         RoundKey round, std::string meaning,
                                                         std::string site, rpc::Buffer value, bool wants_all,
                                                         std::int64_t limit) {
  const auto promise = std::make_shared<rpc::Promise<std::vector<rpc::Buffer>>>();
  auto future = promise->future();
  const std::size_t size = round.launch.size() + meaning.size() + site.size() + value.size();
  const auto refused = layer->deliver(
      group, size,
      [from = call.peer().id, round = std::move(round), meaning = std::move(meaning), site = std::move(site),
       value = std::move(value), wants_all, limit, promise](GroupCore& core) mutable {
        core.value(from, std::move(round), std::move(meaning), std::move(site), std::move(value), wants_all,
                   std::chrono::nanoseconds(limit))
            .then([promise](rpc::Result<std::vector<rpc::Buffer>>&& values) {
              promise->complete(std::move(values));
            });
      });
  if (refused) promise->fail(*refused);
  return future;
}

void GroupService::disagree(rpc::CallContext& call, GroupId group, std::uint64_t sequence,
                            std::string signature) {
  const std::size_t size = signature.size();
  (void)layer->deliver(group, size,
                       [from = call.peer().id, sequence, signature = std::move(signature)](
                           GroupCore& core) mutable { core.disagree(from, sequence, std::move(signature)); });
}

void GroupService::failed(rpc::CallContext& call, GroupId group, rpc::ErrorKind kind, std::string text) {
  const std::size_t size = text.size();
  (void)layer->deliver(group, size,
                       [from = call.peer().id, kind, text = std::move(text)](GroupCore& core) mutable {
                         core.failed(from, kind, std::move(text));
                       });
}

void GroupService::left(rpc::CallContext& call, GroupId group) {
  (void)layer->deliver(group, 0, [from = call.peer().id](GroupCore& core) { core.left(from); });
}

bool GroupService::standing(rpc::CallContext&, GroupId group, std::uint64_t sequence) {
  const auto core = layer->find(group);
  return core != nullptr && core->has_begun(sequence);
}

std::vector<std::string> GroupService::flight(rpc::CallContext&, std::uint64_t latest) {
  std::vector<std::string> dumps;
  for (const auto& group : layer->all()) {
    group->note_awaited();
    FlightDump dump = group->flight();
    auto& entries = dump.records.entries;
    std::size_t left = entries.size();
    std::erase_if(entries, [&](const FlightEntry& entry) { return left-- > latest && !entry.is_open(); });
    dumps.push_back(json_of(dump));
  }
  return dumps;
}

}  // namespace weft::collectives
