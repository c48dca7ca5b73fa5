// AgentOptions: the configuration of an agent. Runtime: the loops, the executor and the transports of an
// agent. Both are values. In AgentOptions, everything except the name has a default.
#pragma once

#include <weft/rpc/call/retry.h>
#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/log.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/process_id.h>
#include <weft/rpc/security/credentials.h>
#include <weft/rpc/security/permissions.h>
#include <weft/rpc/wire/limits.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// A peer is lost if nothing was received from it for `timeout`, for example because its host has failed or
// its process is stopped. Every received byte counts, including bytes of an incomplete frame. At the end of
// each `interval` in which a side has sent nothing, its loop sends a heartbeat, ahead of queued frames.
// Handlers do not delay heartbeats, except non_blocking handlers, which run on the loop and must not block.
// If the agent runs on the program's io_context, it sends heartbeats only while the program runs the
// io_context. An agent logs a warning if a heartbeat was late by more than `interval`.
struct Heartbeat {
  std::chrono::nanoseconds interval = std::chrono::seconds{5};  // 0: none
  std::chrono::nanoseconds timeout = std::chrono::seconds{30};
};

// The limits of a stream (rpc/stream/stream.h): the items that may be in flight to a reader or wait for the
// reader, before the source of the stream must wait. The last item may exceed the limit of bytes.
struct StreamWindow {
  std::uint64_t items = 256;
  std::uint64_t bytes = std::uint64_t{16} << 20;
};

// The memory that streams of an agent may use.
struct StreamOptions {
  StreamWindow window;  // of each stream read by the agent, and the maximum for streams that it serves
  // The maximum number of streams served to one peer at a time. Further ones fail with resource_exhausted.
  std::size_t max_per_peer = 1024;
};

class Interceptor;
class Transport;

struct AgentOptions {
  std::string name;                 // must be unique in a job
  std::vector<std::string> listen;  // addresses (transport/address.h); none: the agent only connects
  Limits limits;
  StreamOptions streams;
  // The identity of the agent on every connection to another process, and the identities that the agent
  // accepts: mutual TLS 1.3, or a secret of the job (rpc/security/credentials.h). null: no TLS, and the agent
  // listens only on loopback and Unix sockets.
  std::shared_ptr<const Credentials> credentials;
  // The methods that each peer may call. nullopt: every accepted peer may call every method.
  std::optional<Permissions> permissions;
  // Permits listening beyond this host, and users other than this one in a job on this host, without
  // credentials.
  bool insecure = false;
  // Whether the agent connects only with processes of its own user on this host. The kernel states the user
  // at the other end of shared memory, of a Unix socket, and of TCP between loopback addresses. A process of
  // another user (root is one, too), or whose user is not known, is refused with permission_denied on both
  // sides. Connections within this process are not checked. No effect with credentials, which prove more.
  // nullopt: true for a member of a job without `insecure` (rpc/job/job.h), so that no other user of the host
  // can join the job and receive its state; otherwise false.
  std::optional<bool> same_user;
  // The maximum number of pending handshakes: accepted connections whose peer has not sent its hello. If
  // there are more, the oldest one is closed. Each handshake costs about 10 KiB, more with TLS, until
  // handshake_timeout. A job whose agents all start at once needs as many pending handshakes as it has
  // agents. At most half of the descriptors of the process are used.
  std::size_t max_handshakes = 16384;
  std::size_t loops = 1;  // event loops, if the agent has its own
  // The time for which a loop of the agent's own polls without work before it blocks. nullopt: up to 50 µs,
  // as long as events arrive within that time and no other thread needs the core (rpc/core/spin_policy.h). 0:
  // the loop blocks at once.
  std::optional<std::chrono::nanoseconds> spin;
  // The maximum number of lanes: further TCP connections to a peer. The bytes of the connection are divided
  // between it and its lanes, in blocks of 32 KiB, so attachments of 1 MiB and more use all of them. Lanes
  // help on networks that limit the bandwidth of each connection or lose packets (docs/performance.md). The
  // smaller value of the two sides applies, at most 16.
  std::size_t lanes = 0;
  // Agents of one user on one host connect through shared memory, whichever addresses they use: each TCP and
  // Unix address has a companion (rpc/transport/shm/companion.h). Agents with credentials do not use shared
  // memory, because credentials prove more about a peer than the kernel does.
  bool same_host = true;
  // The maximum number of connections through shared memory, including pending ones and those of shm://
  // addresses. Each of these connections costs two descriptors, four mappings and some pages on either side.
  // Beyond the maximum, agents connect to the address itself, and connections to shm:// addresses fail.
  std::uint32_t max_shared = 256;
  std::uint64_t receive_pool = std::uint64_t{512} << 20;  // bytes of memory kept for arriving attachments
  std::size_t handler_threads = 0;                        // 0: the number of cores, at least 2
  // The timeout of one attempt to connect to one address, including the resolution of its host name. The
  // handshake that follows has its own timeout (handshake_timeout). TCP repeats a lost connection request
  // after 1, 3 and 7 s, so an attempt with the default survives the loss of three requests, and several
  // attempts fit into the heartbeat's timeout. 0: the timeout of the system applies.
  std::chrono::nanoseconds connect_timeout = std::chrono::seconds{10};
  // The wait after all addresses of a peer have failed. A successful handshake, from either side, or new
  // addresses of the peer reset the wait to `first`. Keep `first` below the first wait of RetryPolicy, and
  // `max` at a fraction of the heartbeat's timeout.
  Backoff connect_backoff{std::chrono::milliseconds{20}, 1.6, std::chrono::seconds{5}};

  // The maximum time from the connection to the arrival of the peer's hello.
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds{10};
  Heartbeat heartbeat;  // for every connection with a completed handshake
  // The timeout of calls of the program that set no timeout (Agent::set_call_timeout() changes it). nullopt:
  // these calls wait until the peer answers or is lost. Internal calls of agents have no timeout.
  std::optional<std::chrono::nanoseconds> call_timeout;
  std::optional<RetryPolicy> retry;       // for calls that set no RetryPolicy; nullopt: one attempt
  RetryBudgetOptions retry_budget;        // for each peer
  std::shared_ptr<Transport> in_process;  // an InProcess network that agents of this process share
  std::vector<std::shared_ptr<Interceptor>> interceptors;  // called in this order (rpc/call/interceptor.h)
  LogSink log;                                             // null: warnings and errors are written to stderr
};

// The runtime of an agent. By default an agent creates its own, with threads, sockets and the system's
// randomness. If the caller passes a runtime (a simulation does), the caller runs it, and must keep it until
// shut_down() of the agent has returned. With such a runtime, shut_down() does not wait for loops or
// handlers. Queued jobs run later, and do nothing because the agent has ended.
struct Runtime {
  std::vector<std::shared_ptr<Loop>> loops;  // at least one
  std::shared_ptr<Executor> handlers;
  // Random: unique among the incarnations of all agents, because ids contain only the incarnation. Never 0. A
  // peer that knows the incarnation under another name refuses the connection.
  std::uint64_t incarnation = 0;
  std::uint64_t id_seed = 0;  // random and secret (rpc/core/id_map.h); repeatable in a simulation
  std::vector<std::shared_ptr<Transport>> transports;
  ProcessId process;  // the agent's process, which peers on this host may watch
};

}  // namespace weft::rpc
