// RouteTable: the routes of one agent by name and by address, and the addresses that its peers have stated.
//
// A peer can invent any number of names. So the table drops routes that were created because their peer
// connected. It drops such a route only if no incarnation of the peer is connected or absent, and no Peer
// handle refers to the route. Owned by AgentCore. Thread-safety: all functions may be called from any thread.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/route.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace weft::rpc {

class WEFT_EXPORT RouteTable {
 public:
  using Routes = std::vector<std::shared_ptr<Route>>;  // in the order of their names or addresses

  // Looks up the addresses of an agent. Calls the given function exactly once, immediately or later, on any
  // thread. An empty list: no address is known.
  using FindAddresses =
      std::function<void(const std::string& name, UniqueFunction<void(std::vector<Address>)>)>;

  explicit RouteTable(AgentCore& core) : core_(core) {}  // core: owns this object

  // The route to the agent of that name. If the route does not exist, it is created, without a connection.
  // addresses: if not empty, they replace the addresses of an existing route, except the agent's route to
  // itself. to_name() throws invalid_argument if an address is malformed.
  std::shared_ptr<Route> to_name(const std::string& name, const std::vector<std::string>& addresses = {});
  std::shared_ptr<Route> find_or_make(const std::string& name, std::vector<Address> addresses);
  // The route to the agent that listens at this address, whatever its name. If the route does not exist, it
  // is created; an existing route keeps its addresses. Throws invalid_argument if the address is malformed.
  std::shared_ptr<Route> to_address(const std::string& address);

  std::shared_ptr<Route> find(const std::string& name) const;  // null: none
  Routes all() const;                                          // each route once
  void clear();                                                // drops all routes and the directory

  // A peer has connected and stated its name and addresses. dialled: the route that dialled; null: the peer
  // dialled, and if the name has no route, a route on `loop` is created. Returns the route of the name.
  std::shared_ptr<Route> peer_connected(const std::string& name, const std::vector<std::string>& addresses,
                                        const std::shared_ptr<Route>& dialled,
                                        const std::shared_ptr<Loop>& loop);
  // Drops the route of that name, if nothing refers to it any more.
  void drop_unused(const std::string& name);
  std::vector<std::string> addresses_of(const std::string& name) const;  // from the peer's last hello

  // The directory in which routes without addresses look up their peer. The job's membership sets it.
  // find_addresses(): calls done() as FindAddresses does. Without a directory, find_addresses() calls done()
  // immediately, with no address.
  void set_directory(FindAddresses find);
  void find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done) const;

 private:
  bool is_unused(const std::string& name, const std::shared_ptr<Route>& route) const WEFT_REQUIRES(mutex_);

  AgentCore& core_;

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<Route>> routes_ WEFT_GUARDED_BY(mutex_);
  // The number of routes at which all unused ones are dropped.
  std::size_t check_at_ WEFT_GUARDED_BY(mutex_) = 64;
  std::map<std::string, std::vector<std::string>> addresses_ WEFT_GUARDED_BY(mutex_);
  FindAddresses directory_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc
