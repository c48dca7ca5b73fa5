#include <weft/parallel/collectives/internal/group/group_service.h>

#include <weft/parallel/collectives/internal/group/collectives_layer.h>

namespace weft::collectives {
namespace {

// f(core, rank) delivers the message of a member. Messages of other agents are ignored.
template <class F>
void notify(CollectivesLayer& layer, const rpc::CallContext& call, GroupId group, std::size_t size, F f) {
  (void)layer.deliver(group, size, [from = call.peer().id, f = std::move(f)](GroupCore& core) mutable {
    if (const int rank = core.rank_of(from); rank >= 0) f(core, rank);
  });
}

// f(core, rank) delivers the message of a member; the future completes with the future that f returns.
template <class T, class F>
rpc::Future<T> request(CollectivesLayer& layer, const rpc::CallContext& call, GroupId group, std::size_t size,
                       F f) {
  const auto promise = std::make_shared<rpc::Promise<T>>();
  auto future = promise->future();
  const auto refused =
      layer.deliver(group, size, [from = call.peer().id, promise, f = std::move(f)](GroupCore& core) mutable {
        const int rank = core.rank_of(from);
        if (rank < 0)
          return promise->fail(core.error(rpc::ErrorKind::permission_denied, from.name + " is not a member"));
        f(core, rank).then([promise](rpc::Result<T>&& result) { promise->complete(std::move(result)); });
      });
  if (refused) promise->fail(*refused);
  return future;
}

}  // namespace

void GroupService::data(rpc::CallContext& call, GroupId group, std::uint64_t sequence, std::uint32_t label,
                        std::uint64_t hash, rpc::Buffer bytes) {
  const std::size_t size = bytes.size();
  notify(*layer, call, group, size,
         [sequence, label, hash, bytes = std::move(bytes)](GroupCore& core, int from) mutable {
           core.collectives().data(from, sequence, label, hash, std::move(bytes));
         });
}

rpc::Future<void> GroupService::message(rpc::CallContext& call, GroupId group, std::uint64_t tag,
                                        std::string type, rpc::Buffer bytes) {
  const std::size_t size = type.size() + bytes.size();
  return request<void>(
      *layer, call, group, size,
      [tag, type = std::move(type), bytes = std::move(bytes)](GroupCore& core, int from) mutable {
        return core.messages().deliver(from, tag, std::move(type), std::move(bytes));
      });
}

rpc::Future<void> GroupService::lent_message(rpc::CallContext& call, GroupId group, std::uint64_t tag,
                                             std::string type, std::uint64_t offset, std::uint64_t bytes) {
  const std::size_t size = type.size();
  return request<void>(*layer, call, group, size,
                       [tag, type = std::move(type), offset, bytes](GroupCore& core, int from) mutable {
                         return core.messages().deliver_lent(from, tag, std::move(type), offset, bytes);
                       });
}

rpc::Future<std::vector<rpc::Buffer>> GroupService::give(rpc::CallContext& call, GroupId group,
                                                         RoundKey round, std::string meaning,
                                                         std::string site, rpc::Buffer value, bool wants_all,
                                                         std::int64_t limit) {
  const std::size_t size = round.launch.size() + meaning.size() + site.size() + value.size();
  return request<std::vector<rpc::Buffer>>(
      *layer, call, group, size,
      [round = std::move(round), meaning = std::move(meaning), site = std::move(site),
       value = std::move(value), wants_all, limit](GroupCore& core, int from) mutable {
        return core.values().take(from, std::move(round), std::move(meaning), std::move(site),
                                  std::move(value), wants_all, std::chrono::nanoseconds(limit));
      });
}

void GroupService::disagree(rpc::CallContext& call, GroupId group, std::uint64_t sequence,
                            std::string signature) {
  const std::size_t size = signature.size();
  notify(*layer, call, group, size,
         [sequence, signature = std::move(signature)](GroupCore& core, int from) mutable {
           core.collectives().signature(from, sequence, std::move(signature));
         });
}

void GroupService::failed(rpc::CallContext& call, GroupId group, rpc::ErrorKind kind, std::string text) {
  const std::size_t size = text.size();
  notify(*layer, call, group, size, [kind, text = std::move(text)](GroupCore& core, int) mutable {
    core.failure().failed_elsewhere(kind, std::move(text));
  });
}

void GroupService::left(rpc::CallContext& call, GroupId group, std::uint64_t completed) {
  notify(*layer, call, group, 0, [&](GroupCore& core, int from) { core.failure().left(from, completed); });
}

bool GroupService::standing(rpc::CallContext&, GroupId group, std::uint64_t sequence) {
  const auto core = layer->find(group);
  return core != nullptr && core->collectives().has_begun(sequence);
}

Activity GroupService::activity(rpc::CallContext&, std::string group) { return layer->activity(group); }

std::vector<std::string> GroupService::flight(rpc::CallContext&, std::uint64_t latest) {
  std::vector<std::string> dumps;
  for (const auto& group : layer->all()) {
    group->failure().note_awaited();
    FlightDump dump = group->failure().flight();
    auto& entries = dump.records.entries;
    std::size_t left = entries.size();
    std::erase_if(entries, [&](const FlightEntry& entry) { return left-- > latest && !entry.is_open(); });
    dumps.push_back(json_of(dump));
  }
  return dumps;
}

}  // namespace weft::collectives
