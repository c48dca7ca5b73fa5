#include <weft/parallel/collectives/nccl/bootstrap.h>

#include <algorithm>

namespace weft::collectives::nccl {

rpc::Future<UniqueId> exchange_id(std::shared_ptr<rpc::Store> store, std::string key, int rank,
                                  const std::function<UniqueId()>& make, rpc::CallOptions options) {
  if (rank == 0) {
    const UniqueId id = make();
    auto stored = store->set(std::move(key), std::string(id.bytes.begin(), id.bytes.end()));
    return std::move(stored).then([id, store](rpc::Result<void> result) -> rpc::Result<UniqueId> {
      if (!result) return result.error();
      return id;
    });
  }
  auto value = store->get(key, std::move(options));
  return std::move(value).then([key, store](rpc::Result<std::string> result) -> rpc::Result<UniqueId> {
    if (!result) return result.error();
    UniqueId id;
    if (result.value().size() != id.bytes.size())
      return std::make_exception_ptr(
          rpc::Error(rpc::ErrorKind::protocol_error, "the store's '" + key + "' is no unique id of NCCL"));
    std::copy(result.value().begin(), result.value().end(), id.bytes.begin());
    return id;
  });
}

}  // namespace weft::collectives::nccl
