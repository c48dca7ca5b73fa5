#include <weft/rpc/job/store/store_resolver.h>

namespace weft::rpc {

PeerSet::Resolver store_resolver(std::shared_ptr<Store> store, std::string prefix) {
  return [store = std::move(store), prefix = std::move(prefix)] {
    return store->list(prefix).then([](Result<StoreView>&& view) {
      return capture([&] {
        PeerSet::Names names;
        for (auto& [key, value] : std::move(view).get().entries) names.push_back(value);
        return names;
      });
    });
  };
}

}  // namespace weft::rpc
