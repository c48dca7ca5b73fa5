#include <weft/rpc/job/membership/store_access.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/etcd_store.h>
#include <weft/rpc/job/store/file_store.h>
#include <weft/rpc/job/store/memory_store.h>
#include <weft/rpc/job/store/remote_store.h>
#include <weft/rpc/job/store/store_service.h>

namespace weft::rpc::detail {
namespace {

constexpr const char* no_hosts_address = "192.0.2.1";  // of a network for documentation (RFC 5737)

// The StoreAccess of a store in this process. If the store has its own loop, close() also stops the loop.
template <class S>
StoreAccess access_to(std::shared_ptr<S> store, std::shared_ptr<Loop> loop, bool own_loop,
                      std::string towards) {
  StoreAccess access{store, false, std::move(towards), loop, nullptr, [store] { return store->discard(); }};
  access.close = [store, loop = own_loop ? loop : nullptr] {
    store->close();
    if (loop != nullptr) loop->stop();
  };
  return access;
}

// The StoreAccess of the host, whose agent keeps the store.
StoreAccess kept_by_host(const std::shared_ptr<AgentCore>& core, const Rendezvous& rendezvous,
                         StoreAccess access) {
  if (core->options().listen.empty())
    throw Error(ErrorKind::invalid_argument,
                "rank 0 keeps the store" +
                    (rendezvous.store.empty() ? "" : " at " + Address::parse(rendezvous.store).text()) +
                    ": its options.listen is empty, expected " +
                    (rendezvous.store.empty() ? "an address" : "that address"));
  auto store = std::make_shared<MemoryStore>(access.loop);
  // Before a rank of another job can reach the store.
  const auto job = rendezvous.metadata.find(std::string(membership_keys::job));
  if (rendezvous.fixed_world && job != rendezvous.metadata.end())
    store->set(job->first, job->second).then([](Result<void>&&) {});
  serve_store(*core, store);
  access.close = [store] { store->close(); };
  access.store = std::move(store);
  return access;
}

}  // namespace

StoreAccess store_access(const std::shared_ptr<AgentCore>& core, const Rendezvous& rendezvous) {
  const std::string& url = rendezvous.store;
  if (rendezvous.program_store != nullptr && !url.empty())
    throw Error(ErrorKind::invalid_argument,
                "the job has the store " + url + " and a program_store, expected one of them");
  const auto agents = core->pick_loop();
  // The program may block its io_context.
  const bool own_loop = dynamic_cast<AsioLoop*>(agents.get()) != nullptr && !agents->owns_thread();
  const auto steady = [&]() -> std::shared_ptr<Loop> {
    return own_loop ? std::make_shared<AsioLoop>() : agents;
  };
  if (url.starts_with("file:")) {
    auto store = std::make_shared<FileStore>(FileStore::path_of(url));
    return access_to(std::move(store), steady(), own_loop, no_hosts_address);
  }
  if (url.starts_with("etcd:")) {
    const EtcdStoreOptions options = EtcdStore::options_of(url);
    const auto loop = steady();
    return access_to(std::make_shared<EtcdStore>(loop, options), loop, own_loop,
                     Address::parse("tcp://" + options.servers.front()).host);
  }
  StoreAccess access;
  access.with_host = true;
  access.loop = agents;  // the store's replies arrive on the agent's loops
  if (rendezvous.program_store != nullptr) {
    access.towards = no_hosts_address;  // of a rank other than 0: until it has found rank 0
  } else {
    const Address address = Address::parse(url);
    access.towards = address.host.empty() ? no_hosts_address : address.host;
    if (rendezvous.rank != 0)
      access.store = std::make_shared<RemoteStore>(Peer(core, core->routes().to_address(url)));
  }
  return rendezvous.rank == 0 ? kept_by_host(core, rendezvous, std::move(access)) : access;
}

std::string title_of_store(const Rendezvous& rendezvous) {
  return rendezvous.program_store != nullptr
             ? "of rank 0, found by '" + rendezvous.program_prefix + "' in the program's store"
             : rendezvous.store;
}

}  // namespace weft::rpc::detail
