#include <weft/rpc/job/member_resolver.h>

#include <weft/rpc/job/membership/roster.h>

namespace weft::rpc {

PeerSet::Resolver member_resolver(std::shared_ptr<Store> store, std::function<bool(const Member&)> wanted) {
  return [store = std::move(store), wanted = std::move(wanted)] {
    return store->list(std::string(membership_keys::members)).then([wanted](Result<StoreView>&& view) {
      return capture([&] {
        const Roster roster(std::move(view).get());
        PeerSet::Names names;
        for (const auto& [name, member] : roster.members())
          if (member->here() && !member->addresses.empty() && (wanted == nullptr || wanted(*member)))
            names.push_back(member->addresses.front());
        return names;
      });
    });
  };
}

}  // namespace weft::rpc
