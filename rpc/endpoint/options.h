// AgentOptions: how an agent is set up; Runtime: what it runs on. Plain data; all but the name has a default.
#pragma once

#include <weft/rpc/call/retry.h>
#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/log.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/process_id.h>
#include <weft/rpc/security/credentials.h>
#include <weft/rpc/security/permissions.h>
#include <weft/rpc/transport/transport.h>
#include <weft/rpc/wire/limits.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// How the agents of one job find each other (rpc/rendezvous/membership.h).
struct Rendezvous {
  static constexpr std::size_t no_rank = static_cast<std::size_t>(-1);

  // tcp://host:port of the agent that keeps the store (any address of one is good), file:///path, or
  // etcd://host:port[,host:port][/prefix]; each job has its own path or prefix.
  std::string store;
  // Of this agent; agents of a job are named worker0, worker1, … unless named otherwise. Rank 0 is the host
  // (membership.h). no_rank: it has none, where the world is not fixed.
  std::size_t rank = 0;
  std::size_t world_size = 0;  // how many there are, where the world is fixed
  bool fixed_world = true;     // the loss of any member ends the job with an error everywhere
  std::map<std::string, std::string> metadata = {};  // what this member says of itself: see members.h
  // How long a member of which nothing is heard is still taken to be here. It is kept up from the agent's
  // loops, so that busy handlers do no harm; a program that runs an agent on its own io_context and blocks
  // that for so long is lost. Long enough for the slowest pause of a healthy process; 0: for ever.
  std::chrono::nanoseconds lease = std::chrono::seconds{30};
};

// A peer is lost if nothing was received from it for `timeout`: its host has failed, or the process is
// stopped. Every byte counts, also of an incomplete frame. Each side sends something at least every
// `interval`, ahead of queued frames, from its loop. Handlers do not delay it, except those marked
// non_blocking, which run on the loop and must not block. On the program's io_context it works while the
// program runs that. An agent logs a warning if a heartbeat was late by more than `interval`.
struct Heartbeat {
  std::chrono::nanoseconds interval = std::chrono::seconds{5};  // 0: none
  std::chrono::nanoseconds timeout = std::chrono::seconds{30};
};

// How much of its streams an agent keeps in memory (rpc/stream/stream.h).
// What may be in flight to a reader, or wait for it, before the stream's source must wait. The item that
// reaches the limit of bytes may exceed it.
struct StreamWindow {
  std::uint64_t items = 256;
  std::uint64_t bytes = std::uint64_t{16} << 20;
};

struct StreamOptions {
  StreamWindow window;  // of each stream that is read here; and the most that one served here keeps
  std::size_t max_per_peer = 1024;  // streams served to one peer at a time; more are resource_exhausted
};

class Interceptor;

struct AgentOptions {
  std::string name;                 // unique in a job
  std::vector<std::string> listen;  // addresses (transport/address.h); none: the agent only connects
  Limits limits;
  StreamOptions streams;
  // What the agent proves itself with over every connection that leaves the process, and whom it lets in:
  // mutual TLS 1.3, or a secret of the job (rpc/security/credentials.h). null: no TLS, and it listens on
  // loopback and Unix sockets only.
  std::shared_ptr<const Credentials> credentials;
  std::optional<Permissions>
      permissions;        // which peer may call what; none: every peer that gets in, everything
  bool insecure = false;  // permit listening beyond this host without credentials
  // The maximum number of pending handshakes: accepted connections whose peer has not sent its hello. If
  // there are more, the oldest one is closed. The same number of early lanes is kept; further ones are
  // closed. Each costs about 10 KiB, more with TLS, until handshake_timeout. A job whose agents all start at
  // once needs as many as it has agents. At most half of the descriptors of the process are used.
  std::size_t max_handshakes = 16384;
  std::size_t loops = 1;  // event loops of the agent's own
  // How long a loop of the agent's own that has no work polls before it sleeps. nullopt: up to 50 µs, while
  // events arrive within that time and no other thread wants the core (rpc/core/spin_policy.h). 0: never.
  std::optional<std::chrono::nanoseconds> spin;
  // Further TCP connections to a peer, which carry attachments of 1 MiB and more, each on the agent's next
  // loop: for networks that are faster than one flow or one core. As many as both sides allow, at most 16.
  std::size_t lanes = 0;
  // Agents of one user on one host connect through shared memory, whatever addresses they know of each other:
  // each TCP and Unix address has a companion (rpc/transport/shm/companion.h). Not with credentials, which
  // prove more than the kernel does.
  bool same_host = true;
  // Connections through shared memory at a time, those that are being made and those of shm:// addresses too.
  // Each costs two descriptors, four mappings and some pages on either side. Beyond, either side falls back
  // to the address itself; to an shm:// address none is made.
  std::uint32_t max_shared = 256;
  std::uint64_t receive_pool = std::uint64_t{512} << 20;  // bytes of memory kept for arriving attachments
  std::size_t handler_threads = 0;                        // 0: as many as the machine has cores, at least 2
  // Of one attempt to connect to one address, its host name's resolution included; the handshake that
  // follows has handshake_timeout. TCP repeats a lost request after 1, 3 and 7 s, so the default survives
  // the loss of three, and leaves several attempts within the heartbeat's timeout. 0: the system's own
  // limit.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds{10};
  // After a failed attempt to reach a peer (each of its addresses was tried), the next attempt waits so long;
  // a handshake that succeeds, from either side, ends the series. `first` is less than a RetryPolicy waits at
  // first, `max` a fraction of the heartbeat's timeout.
  Backoff connect_backoff{std::chrono::milliseconds{20}, 1.6, std::chrono::seconds{5}};
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds{10};
  Heartbeat heartbeat;
  // Of calls that the program makes and that do not say it themselves (Agent::set_call_timeout() changes it);
  // none: they wait as long as their peer lives. What agents ask each other by themselves has none.
  std::optional<std::chrono::nanoseconds> call_timeout;
  std::optional<RetryPolicy> retry;       // of calls that do not say it themselves; none: a call is made once
  RetryBudgetOptions retry_budget;        // for each peer
  std::shared_ptr<Transport> in_process;  // an InProcess network shared with other agents of this process
  std::optional<Rendezvous> rendezvous;
  std::vector<std::shared_ptr<Interceptor>> interceptors;  // asked in this order (rpc/call/interceptor.h)
  LogSink log;                                             // default: warnings and errors to stderr
};

// What an agent runs on. An agent makes its own, from threads, sockets and the system's randomness. A caller
// that passes one (a simulation) runs it. It must outlive the agent's shut_down(), which then waits neither
// for the loops nor for handlers: queued jobs run later, and find that the agent has ended.
struct Runtime {
  std::vector<std::shared_ptr<Loop>> loops;  // one at least
  std::shared_ptr<Executor> handlers;
  std::uint64_t incarnation = 0;  // no other incarnation of this name had it; never 0
  std::uint64_t id_seed = 0;  // random, and told to nobody (rpc/core/id_map.h); a simulation repeats its own
  std::vector<std::shared_ptr<Transport>> transports;
  ProcessId process;  // that all this runs in, where peers on its host can look for it
};

}  // namespace weft::rpc
