#include <weft/rpc/agent/agent.h>

#include <weft/rpc/transport/local_address.h>

#include <charconv>
#include <cstdlib>

namespace weft::rpc {
namespace {

constexpr std::string_view etcd = "etcd://";

// The variables, with errors that name them.
class Environment {
 public:
  explicit Environment(const VariableLookup& lookup) : lookup_(lookup) {}

  // An empty variable counts as none: that is how shells unset one for a command.
  std::optional<std::string> find(const std::string& name) const {
    auto value = lookup_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  std::string require(const std::string& name, const std::string& meaning) const {
    if (auto value = find(name)) return *std::move(value);
    throw Error(ErrorKind::invalid_argument, "the environment lacks " + name + ", " + meaning);
  }
  static std::uint64_t number(const std::string& name, const std::string& value, std::uint64_t least,
                              std::uint64_t most) {
    std::uint64_t number = 0;
    const char* const last = value.data() + value.size();
    const auto [end, error] = std::from_chars(value.data(), last, number);
    if (error != std::errc{} || end != last || number < least || number > most)
      throw Error(ErrorKind::invalid_argument, name + "='" + value + "' is not a number from " +
                                                   std::to_string(least) + " to " + std::to_string(most));
    return number;
  }
  bool flag(const std::string& name) const {
    const auto value = find(name);
    if (!value || *value == "0") return false;
    if (*value == "1") return true;
    throw Error(ErrorKind::invalid_argument, name + "='" + *value + "' is neither 0 nor 1");
  }

 private:
  const VariableLookup& lookup_;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end != begin) parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string tcp(const std::string& host, const std::string& port) {
  return Address{"tcp", host, port, {}}.text();
}

std::string store_address(const Environment& environment) {
  if (const auto store = environment.find("WEFT_STORE")) {
    const bool kept_by_rank_0 = !store->starts_with("file:") && !store->starts_with("etcd:");
    if (kept_by_rank_0) (void)Address::parse(*store);
    if (!kept_by_rank_0 && !store->starts_with("file:///") && !store->starts_with("etcd://"))
      throw Error(ErrorKind::invalid_argument,
                  "WEFT_STORE='" + *store + "' is neither file:///path, etcd://host:port nor an address");
    return *store;
  }
  const std::string host = environment.require("MASTER_ADDR", "the host of rank 0");
  if (const auto port = environment.find("WEFT_STORE_PORT"))
    return tcp(host, std::to_string(Environment::number("WEFT_STORE_PORT", *port, 1, 65535)));
  const std::string text = environment.require("MASTER_PORT", "a port on the host of rank 0");
  // torchrun keeps a store of its own at MASTER_PORT.
  const bool occupied = environment.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const std::uint64_t port = Environment::number("MASTER_PORT", text, 1, occupied ? 65534 : 65535);
  return tcp(host, std::to_string(port + (occupied ? 1 : 0)));
}

// A host that every agent of the job reaches: the store's, or where that is a file rank 0's, if it is known.
std::string common_host(const Environment& environment, const std::string& store) {
  if (store.starts_with("file:")) return environment.find("MASTER_ADDR").value_or("");
  if (!store.starts_with(etcd)) return Address::parse(store).host;
  // etcd://host[:port][,host[:port]][/prefix]
  std::string first = store.substr(etcd.size(), store.find_first_of(",/", etcd.size()) - etcd.size());
  if (first.ends_with(']') || first.find(':') == std::string::npos) first += ":2379";
  return Address::parse("tcp://" + first).host;
}

}  // namespace

AgentOptions options_from(const VariableLookup& lookup, const LocalAddress& towards) {
  const Environment environment(lookup);
  Rendezvous job;
  const std::string world = environment.require("WORLD_SIZE", "the number of agents in the job");
  job.world_size = Environment::number("WORLD_SIZE", world, 1, 1'000'000);
  const std::string rank = environment.require("RANK", "this agent's number in the job, from 0");
  job.rank = Environment::number("RANK", rank, 0, job.world_size - 1);
  job.store = store_address(environment);

  AgentOptions options;
  options.name = environment.find("WEFT_NAME").value_or("worker" + rank);
  options.insecure = environment.flag("WEFT_INSECURE");
  const bool kept_by_rank_0 = !job.store.starts_with("file:") && !job.store.starts_with(etcd);
  if (const auto listen = environment.find("WEFT_LISTEN")) {
    options.listen = split(*listen);
    for (const std::string& address : options.listen) (void)Address::parse(address);
  }
  if (job.rank == 0 && kept_by_rank_0) {
    // Who sets WEFT_LISTEN for rank 0 says where the store's address is to be bound, all interfaces for
    // example.
    if (options.listen.empty()) options.listen = {job.store};
  } else if (options.listen.empty()) {
    // Where the others are: on this host, or wherever the way to what they share leads.
    const std::string host = common_host(environment, job.store);
    options.listen = {tcp(host.empty() ? "127.0.0.1" : towards(host), "0")};
  }
  options.rendezvous = std::move(job);
  return options;
}

AgentOptions from_environment() {
  const auto lookup = [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  return options_from(lookup, local_address_towards);
}

}  // namespace weft::rpc
