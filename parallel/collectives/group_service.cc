#include <weft/parallel/collectives/group_service.h>

namespace weft::collectives {

void GroupService::data(rpc::CallContext& call, GroupId group, std::uint64_t sequence, std::uint32_t label,
                        std::uint64_t hash, rpc::Buffer bytes) {
  context->deliver(
      group, [from = call.peer().id, sequence, label, hash, bytes = std::move(bytes)](
                 GroupCore& core) mutable { core.data(from, sequence, label, hash, std::move(bytes)); });
}

rpc::Future<void> GroupService::message(rpc::CallContext& call, GroupId group, std::uint64_t tag,
                                        std::string type, rpc::Buffer bytes) {
  rpc::Promise<void> promise;
  auto future = promise.future();
  context->deliver(group, [from = call.peer().id, tag, type = std::move(type), bytes = std::move(bytes),
                           promise = std::move(promise)](GroupCore& core) mutable {
    core.message(from, tag, std::move(type), std::move(bytes))
        .then([promise = std::move(promise)](rpc::Result<void>&& taken) mutable {
          promise.complete(std::move(taken));
        });
  });
  return future;
}

rpc::Future<std::vector<rpc::Buffer>> GroupService::give(rpc::CallContext& call, GroupId group,
                                                         std::uint64_t round, std::string meaning,
                                                         std::string site, rpc::Buffer value, bool wants_all,
                                                         std::int64_t limit) {
  rpc::Promise<std::vector<rpc::Buffer>> promise;
  auto future = promise.future();
  context->deliver(group, [from = call.peer().id, round, meaning = std::move(meaning), site = std::move(site),
                           value = std::move(value), wants_all, limit,
                           promise = std::move(promise)](GroupCore& core) mutable {
    core.value(from, round, std::move(meaning), std::move(site), std::move(value), wants_all,
               std::chrono::nanoseconds(limit))
        .then([promise = std::move(promise)](rpc::Result<std::vector<rpc::Buffer>>&& values) mutable {
          promise.complete(std::move(values));
        });
  });
  return future;
}

void GroupService::disagree(rpc::CallContext& call, GroupId group, std::uint64_t sequence,
                            std::string signature) {
  context->deliver(
      group, [from = call.peer().id, sequence, signature = std::move(signature)](GroupCore& core) mutable {
        core.disagree(from, sequence, std::move(signature));
      });
}

void GroupService::failed(rpc::CallContext& call, GroupId group, rpc::ErrorKind kind, std::string text) {
  context->deliver(group, [from = call.peer().id, kind, text = std::move(text)](GroupCore& core) mutable {
    core.failed(from, kind, std::move(text));
  });
}

void GroupService::left(rpc::CallContext& call, GroupId group) {
  context->deliver(group, [from = call.peer().id](GroupCore& core) { core.left(from); });
}

bool GroupService::standing(rpc::CallContext&, GroupId group, std::uint64_t sequence) {
  const auto core = context->find(group);
  return core != nullptr && core->has_begun(sequence);
}

}  // namespace weft::collectives
