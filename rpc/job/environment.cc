#include <weft/rpc/job/environment.h>

#include <weft/rpc/core/parse_number.h>
#include <weft/rpc/job/job_url.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/transport/address.h>

#include <cstdio>
#include <random>

namespace weft::rpc {
namespace {

constexpr std::string_view etcd = "etcd://";
// In an elastic world, the others continue without a member that is lost. A fixed world ends.
constexpr std::chrono::seconds elastic_detection{5};

// Reads the variables. Its errors name the variable.
class Environment {
 public:
  explicit Environment(const VariableLookup& lookup) : lookup_(lookup) {}

  // An empty variable counts as unset, because a shell can empty a variable for one command, but not unset
  // it.
  std::optional<std::string> find(const std::string& name) const {
    auto value = lookup_(name);
    return value && !value->empty() ? value : std::nullopt;
  }
  std::string require(const std::string& name, const std::string& meaning) const {
    if (auto value = find(name)) return *std::move(value);
    throw Error(ErrorKind::invalid_argument, "the environment has no " + name + ": " + meaning);
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

// This process's place in the job, as its launcher states it.
struct StatedPlace {
  std::optional<std::uint64_t> rank, world_size;  // no rank: the process joins an elastic world
  std::optional<detail::JobPlace> batch;          // if RANK is not set
};

// A number from the job's URL; if the URL does not state it, from the environment.
std::uint64_t stated(const detail::JobUrl& url, const Environment& environment, const std::string& name,
                     const std::string& parameter, std::uint64_t min, std::uint64_t max,
                     const std::string& meaning) {
  const auto number = parameter == "rank" ? url.rank : url.world_size;
  if (!number && !url.text.empty() && !environment.find(name))
    throw Error(ErrorKind::invalid_argument, "'" + url.text + "' has no " + parameter +
                                                 ", and the environment has no " + name + ": " + meaning);
  if (!number) return detail::number_between(name, environment.require(name, meaning), min, max);
  return detail::number_between("'" + url.text + "': " + parameter, std::to_string(*number), min, max);
}

StatedPlace stated_place(const detail::JobUrl& url, const Environment& environment,
                         const VariableLookup& lookup) {
  StatedPlace place;
  const bool ranked = url.rank || environment.find("RANK"),
             met = !url.store.empty() || environment.find("WEFT_STORE");
  if (!ranked && met && environment.flag("WEFT_ELASTIC_WORLD")) return place;
  if (!ranked) place.batch = detail::job_place(lookup);
  if (place.batch && place.batch->world_size && !url.world_size && !environment.find("WORLD_SIZE"))
    place.world_size = *place.batch->world_size;
  else
    place.world_size = stated(url, environment, "WORLD_SIZE", "world_size", 1, detail::max_agents,
                              "the number of agents in the job");
  if (place.batch && place.batch->rank >= *place.world_size)
    throw Error(ErrorKind::invalid_argument,
                place.batch->system + "'s rank " + std::to_string(place.batch->rank) +
                    " is not within a world of " + std::to_string(*place.world_size));
  place.rank = place.batch ? place.batch->rank
                           : stated(url, environment, "RANK", "rank", 0, *place.world_size - 1,
                                    "this agent's number in the job, from 0");
  return place;
}

// The host that a variable states. An IPv6 address may be in brackets, as in URLs.
std::optional<std::string> host_in(const Environment& environment, const char* variable) {
  std::optional<std::string> host = environment.find(variable);
  if (host && host->starts_with('[') && host->ends_with(']')) host = host->substr(1, host->size() - 2);
  return host;
}

// The host of rank 0 according to a batch system: the first of its candidates that can be reached.
std::string host_of(const detail::JobPlace& place, const LocalAddress& towards) {
  if (place.one_host) return "127.0.0.1";
  if (place.certain) return place.hosts.front();
  std::string problems;
  for (const std::string& host : place.hosts) {
    try {
      const std::string own = towards(host);
      const bool digits = host.find_first_not_of("0123456789.") == std::string::npos;
      if (place.rank != 0 || !digits || own == host) return host;
      // rank 0 (this process) could not listen at that address
      problems += "; " + host + ", from which the job was started, is not rank 0's host";
    } catch (const Error& error) {
      problems += std::string("; ") + error.what();
    }
  }
  throw Error(ErrorKind::invalid_argument, "the environment has no MASTER_ADDR: the host of rank 0, which " +
                                               place.system + " does not state" + problems);
}

std::string store_address(const detail::JobUrl& url, const Environment& environment, const StatedPlace& place,
                          const LocalAddress& towards) {
  if (!url.store.empty()) return url.store;
  if (const auto store = environment.find("WEFT_STORE")) {
    const bool kept_by_rank_0 = !store->starts_with("file:") && !store->starts_with("etcd:");
    if (kept_by_rank_0) (void)Address::parse(*store);
    if (!kept_by_rank_0 && !store->starts_with("file:///") && !store->starts_with("etcd://"))
      throw Error(ErrorKind::invalid_argument,
                  "WEFT_STORE='" + *store + "' is neither file:///path, etcd://host:port nor an address");
    return *store;
  }
  std::string host = host_in(environment, "MASTER_ADDR").value_or("");
  if (host.empty())
    host = place.batch ? host_of(*place.batch, towards)
                       : environment.require("MASTER_ADDR", "the host of rank 0");
  if (const auto port = environment.find("WEFT_STORE_PORT"))
    return tcp(host, std::to_string(detail::number_between("WEFT_STORE_PORT", *port, 1, 65535)));
  if (place.batch && place.batch->port && !environment.find("MASTER_PORT"))
    return tcp(host, std::to_string(*place.batch->port));
  const std::string text = environment.require("MASTER_PORT", "a port on the host of rank 0");
  // torchrun keeps its own store at MASTER_PORT.
  const bool occupied = environment.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const std::uint64_t port = detail::number_between("MASTER_PORT", text, 1, occupied ? 65534 : 65535);
  return tcp(host, std::to_string(port + (occupied ? 1 : 0)));
}

// A host that every agent of the job can reach: the host of the store. If the store is a file, the host of
// rank 0; empty if that host is not known. An empty `store` is that of the program.
std::string common_host(const Environment& environment, const std::string& store) {
  if (store.empty() || store.starts_with("file:")) return host_in(environment, "MASTER_ADDR").value_or("");
  if (!store.starts_with(etcd)) return Address::parse(store).host;
  // etcd://host[:port][,host[:port]][/prefix]
  std::string first = store.substr(etcd.size(), store.find_first_of(",/", etcd.size()) - etcd.size());
  if (first.ends_with(']') || first.find(':') == std::string::npos) first += ":2379";
  return Address::parse("tcp://" + first).host;
}

// The address at which rank 0 listens, so that the other agents find its store.
std::string hosts_address(const Environment& environment, const StatedPlace& place, const std::string& store,
                          const LocalAddress& towards) {
  Address address = Address::parse(store);
  if (address.scheme != "tcp") return store;
  if (const auto own = host_in(environment, "WEFT_HOST")) {
    address.host = *own;
  } else if (place.batch && !place.batch->one_host && !environment.find("MASTER_ADDR")) {
    // On many hosts, the host's own name resolves to a loopback address (Debian's /etc/hosts), which other
    // hosts cannot reach.
    const std::string own = towards(address.host);
    if (own.starts_with("127.") && own != address.host) address.host = "0.0.0.0";
  }
  return address.text();
}

std::string name_from(const Environment& environment, const StatedPlace& place) {
  if (auto name = environment.find("WEFT_NAME")) return *std::move(name);
  if (place.rank) return "worker" + std::to_string(*place.rank);
  std::random_device random;
  char number[17];
  std::snprintf(number, sizeof number, "%08x%08x", random(), random());
  return environment.find("WEFT_ROLE").value_or("worker") + "-" + number;
}

std::shared_ptr<const Credentials> credentials_from(const Environment& environment) {
  CredentialOptions files;
  files.certificate_file = environment.find("WEFT_CERTIFICATE").value_or("");
  files.key_file = environment.find("WEFT_KEY").value_or("");
  files.trust_file = environment.find("WEFT_TRUST").value_or("");
  files.secret_file = environment.find("WEFT_SECRET").value_or("");
  const bool none = files.certificate_file.empty() && files.trust_file.empty() && files.secret_file.empty();
  return none ? nullptr : std::make_shared<const Credentials>(std::move(files));
}

// nullopt: the defaults of AgentOptions and Rendezvous.
std::optional<std::chrono::nanoseconds> detection_from(const Environment& environment, bool fixed_world) {
  const auto text = environment.find("WEFT_DETECTION");
  if (!text) return fixed_world ? std::nullopt : std::optional<std::chrono::nanoseconds>(elastic_detection);
  const auto seconds = parse_number<double>(*text);
  if (!seconds || !(*seconds >= 0.01 && *seconds <= 86400))
    throw Error(ErrorKind::invalid_argument,
                "WEFT_DETECTION='" + *text + "', expected a number of seconds from 0.01 to 86400");
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(*seconds));
}

MemberOptions options_of(const detail::JobUrl& url, const VariableLookup& lookup, const LocalAddress& towards,
                         std::shared_ptr<ProgramStore> program_store = nullptr) {
  const Environment environment(lookup);
  const StatedPlace place = stated_place(url, environment, lookup);
  Rendezvous job;
  job.fixed_world = !environment.flag("WEFT_ELASTIC_WORLD");
  job.world_size = place.world_size.value_or(0);
  job.rank = place.rank.value_or(Rendezvous::no_rank);
  job.program_store = std::move(program_store);
  if (job.program_store == nullptr) job.store = store_address(url, environment, place, towards);
  if (place.batch && !place.batch->role.empty()) {
    job.metadata["role"] = place.batch->role;
    job.metadata["role_rank"] = std::to_string(place.batch->role_rank);
  }
  if (job.fixed_world) {
    if (place.batch && !place.batch->job.empty())
      job.metadata[std::string(membership_keys::job)] = place.batch->job;
    // torchrun's default is the same for all jobs.
    if (const auto id = environment.find("TORCHELASTIC_RUN_ID"); id && id != "none")
      job.metadata[std::string(membership_keys::job)] = *id;
    if (const auto id = environment.find("WEFT_JOB")) job.metadata[std::string(membership_keys::job)] = *id;
  }
  if (const auto role = environment.find("WEFT_ROLE")) job.metadata["role"] = *role;
  if (const auto rank = environment.find("WEFT_ROLE_RANK")) job.metadata["role_rank"] = *rank;

  MemberOptions options;
  options.name = name_from(environment, place);
  options.insecure = environment.flag("WEFT_INSECURE");
  options.credentials = credentials_from(environment);
  const bool at_given_address =
      job.program_store == nullptr && !job.store.starts_with("file:") && !job.store.starts_with(etcd);
  if (const auto listen = environment.find("WEFT_LISTEN")) {
    options.listen = split(*listen);
    for (const std::string& address : options.listen) (void)Address::parse(address);
  }
  if (job.rank == 0 && at_given_address) {
    // WEFT_LISTEN of rank 0 states where the store's address is bound, for example to all interfaces.
    if (options.listen.empty()) options.listen = {hosts_address(environment, place, job.store, towards)};
  } else if (options.listen.empty()) {
    // An address that the other members can reach: the address of this host on the route to their common
    // host.
    std::string own = host_in(environment, "WEFT_HOST").value_or("");
    if (own.empty()) {
      const std::string host = common_host(environment, job.store);
      own = host.empty() ? "127.0.0.1" : towards(host);
    }
    options.listen = {tcp(own, "0")};
  }
  options.rendezvous = std::move(job);
  if (const auto detection = detection_from(environment, options.rendezvous.fixed_world))
    options.detect_within(*detection);
  return options;
}

}  // namespace

MemberOptions options_from(const VariableLookup& lookup, const LocalAddress& towards) {
  return options_of({}, lookup, towards);
}

MemberOptions options_from(const std::string& url, const VariableLookup& lookup,
                           const LocalAddress& towards) {
  return options_of(detail::job_url(url), lookup, towards);
}

MemberOptions options_from(std::shared_ptr<ProgramStore> store, std::string prefix, std::size_t rank,
                           std::size_t world_size, const VariableLookup& lookup,
                           const LocalAddress& towards) {
  const detail::JobUrl place{
      .text = "the program's store", .store = "", .rank = rank, .world_size = world_size};
  MemberOptions options = options_of(place, lookup, towards, std::move(store));
  options.rendezvous.program_prefix = std::move(prefix);
  return options;
}

MemberOptions from_environment() { return options_from(detail::variable, local_address_towards); }

MemberOptions from_url(const std::string& url) {
  return options_from(url, detail::variable, local_address_towards);
}

MemberOptions from_program_store(std::shared_ptr<ProgramStore> store, std::string prefix, std::size_t rank,
                                 std::size_t world_size) {
  return options_from(std::move(store), std::move(prefix), rank, world_size, detail::variable,
                      local_address_towards);
}

AgentOptions agent_from_environment(const std::string& towards) {
  const VariableLookup lookup = [&towards](const std::string& name) {
    return name == "MASTER_ADDR" && !towards.empty() ? std::optional(towards) : detail::variable(name);
  };
  return options_from("file:///none?rank=0&world_size=1", lookup, local_address_towards);
}

}  // namespace weft::rpc
