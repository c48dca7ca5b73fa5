// Agent: one endpoint of the RPC layer. It owns its event loops, connections and served methods.
//
// A plain object: several live in one process. Made with its options and the layers above RPC that it takes
// part in (dist_optim::layers() for training); it listens from then on. Methods are served before peers are
// told of the agent: before wait_for() in a job, before handing out addresses() otherwise. The destructor
// ends what is under way with shut_down and waits for running handlers; drain() or leave() first end it
// orderly. It is not destroyed on its own threads (in a handler, or in a `then` that a loop runs); an agent
// on the program's io_context is destroyed on the thread that runs that, or when nobody does. Thread-safety:
// every member may be called from any thread, serve() and allow_create() too.
#pragma once

#include <weft/rpc/agent/collective.h>
#include <weft/rpc/agent/members.h>
#include <weft/rpc/agent/options.h>
#include <weft/rpc/agent/peer.h>
#include <weft/rpc/codec/packed.h>
#include <weft/rpc/core/blocking_executor.h>

namespace weft::rpc {

class Agent;
class Membership;

// A layer above RPC: installs its hooks and methods into an agent that is being made.
using Layer = std::function<void(Agent&)>;
using Layers = std::vector<Layer>;

class WEFT_EXPORT Agent {
 public:
  explicit Agent(AgentOptions options, Layers layers = {});                    // on loops of its own
  Agent(asio::io_context& context, AgentOptions options, Layers layers = {});  // on the program's
  Agent(Runtime runtime, AgentOptions options, Layers layers = {});            // on what it is given
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  const AgentId& id() const { return core_->id(); }
  const std::string& name() const { return core_->id().name; }
  std::vector<std::string> addresses() const { return core_->addresses(); }

  // Serving. A served object is called from several handler threads at once; objects behind RRefs take turns.
  template <Served T>
  void serve(std::shared_ptr<T> object) {
    detail::serve_object(*core_, object);
  }
  template <NamedFunction F>
  void serve() {
    core_->serve(detail::method_entry<F>(""));
  }
  // Peers may create a T here and hold it by RRefs.
  template <Served T>
  void allow_create() {
    detail::serve_object<AgentCore, T>(*core_, nullptr);
    core_->serve(detail::constructor_entry<T>());
  }

  // How many calls of a method run at a time here, and how many wait; beyond, they are refused with
  // resource_exhausted and not_sent.
  void limit(const std::string& method, MethodLimit limit) { core_->limit_method(method, limit); }

  // Peers by name, or by address; connect() is peer() under the name that reads well with an address.
  Peer peer(const std::string& name_or_address);
  Peer connect(const std::string& address) { return peer(address); }
  // The member of a job of fixed size that has this rank, once wait_for() has seen it come. Throws not_found
  // where none has it or none is known yet, failed_precondition where the world is not fixed.
  Peer peer(std::size_t rank);

  // The job, where the options have a rendezvous (membership.h; without one it is failed_precondition).
  std::size_t rank() const;  // Rendezvous::no_rank: it has none
  std::size_t world_size() const;
  Future<void> wait_for(std::size_t agents);  // joins, then waits until so many have joined
  Future<void> leave();                       // tells the layers and the job, then drains
  // Once it has joined: who is here, as last seen, and what becomes of them.
  std::vector<Member> members() const;
  std::unique_ptr<MemberWatch> watch_members();
  // Collectives over members, over all of a fixed world or those that are named (CollectiveOptions): barrier
  // completes when all of them are at it, all_gather when all have given a value, with each one's by its
  // name. T is small and the same at all: the first by name has all the values and sends them to each. Any
  // number may be under way at a time. One ends for all of them alike: deadline_exceeded, naming who did not
  // come, once one's deadline has passed; peer_lost, naming who died; shut_down, naming who has left;
  // aborted, naming who cancelled; type_mismatch where they differ in T, or one is at a barrier. Alone fails
  // (and is not counted) who is no member (failed_precondition), or names one that is not known (not_found).
  // Where the first by name dies the others get peer_lost, or unavailable, unless they have heard of the end
  // before.
  Future<void> barrier(CollectiveOptions options = {});
  template <Transferable T>
  Future<std::map<std::string, T>> all_gather(const T& value, CollectiveOptions options = {}) {
    return gather(std::move(options), type_text<T>(), pack(value))
        .then([](Result<std::map<std::string, Buffer>>&& all) {
          return capture([&] {
            std::map<std::string, T> values;
            for (const auto& [name, bytes] : std::move(all).get()) values.emplace(name, unpack<T>(bytes));
            return values;
          });
        });
  }

  // A barrier that is passed once, besides, no call is under way any more between its members, nor will be
  // because of those that were: chains of calls that nobody waits for have come to their ends, notifications
  // included. Then all may leave. What a program calls meanwhile from outside handlers (another thread, a
  // task of its own) it has to wait for itself; in a handler this would wait for that handler's own call.
  // Open streams count as calls under way, `background` methods do not. Ends as barrier() does; with
  // deadline_exceeded for all, naming who still had calls under way, once the deadline of one has passed; and
  // with aborted for the others, when all have come, where one has cancelled.
  Future<void> quiesce(CollectiveOptions options = {});

  // Lends the calling thread to a task until it ends.
  template <class T>
  T run(Task<T> task) {
    BlockingExecutor here;
    return here.run(std::move(task));
  }
  // Serves until every other member of the job has left (returns 0), or shut_down() (0). Once no member has
  // work left, the agent releases its RRefs, and ends after every member has done so. Throws the error
  // that ended the job; deadline_exceeded, naming who has not left, once `timeout` has passed: then this
  // agent is a member as before, which may call it again.
  int serve_until_shutdown(std::chrono::nanoseconds timeout = no_timeout);

  // No new calls are accepted; completes when those under way have ended. deadline_exceeded: some had not.
  Future<void> drain(std::chrono::nanoseconds timeout);
  void shut_down();

  // Of calls made from now on that give none themselves: AgentOptions::call_timeout. no_timeout: none.
  void set_call_timeout(std::chrono::nanoseconds limit);

  AgentCounts counts() const { return core_->counts(); }
  // For layers, and for Job (rpc/membership/job.h). membership(): failed_precondition without a rendezvous.
  const std::shared_ptr<AgentCore>& core() const { return core_; }
  Membership& membership() const;

 private:
  Agent(std::shared_ptr<AgentCore> core, Layers layers);
  Future<std::map<std::string, Buffer>> gather(CollectiveOptions options, std::string type, Buffer value);
  std::shared_ptr<AgentCore> core_;
  std::shared_ptr<Membership> membership_;
};

// What a method is, as agents list them: peers call `weft.methods`.
struct MethodInfo {
  std::string name, signature;
  std::vector<std::string> parameters;
  std::string result;
  bool idempotent = false;
  bool on_object = false;
};
WEFT_CODEC(MethodInfo, name, signature, parameters, result, idempotent, on_object)

WEFT_EXPORT Future<std::vector<MethodInfo>> list_methods(const Peer& peer);

// The options that the environment states, by the variables that weft launch, torchrun and others set:
//   RANK, WORLD_SIZE          this agent's number in its job, and how many there are
//   MASTER_ADDR, MASTER_PORT  where rank 0 keeps the store. torchrun (TORCHELASTIC_USE_AGENT_STORE=True) has
//   a
//                             store of its own at that port, so there it is the next one: MASTER_PORT + 1
//   WEFT_STORE_PORT           that port instead
//   WEFT_STORE                the store instead of all these: tcp://host:port of rank 0, file:///path, or
//                             etcd://host:port[,host:port][/prefix]
//   WEFT_ELASTIC_WORLD=1         agents may come and go. With WEFT_STORE and without RANK: this one comes to
//   a job
//                             that there is, and needs no number
//   WEFT_NAME                 the agent's name; by default worker<RANK>, or without RANK one that nobody has
//   WEFT_ROLE, WEFT_ROLE_RANK what it says of itself to the others: metadata `role` and `role_rank`
//   WEFT_HOST                 this host, as the others reach it; by default the address that leads to
//                             MASTER_ADDR: 127.0.0.1 on the same host
//   WEFT_LISTEN               its addresses, with commas between them; by default rank 0 listens at the
//                             store's, others on any free port of WEFT_HOST
//   WEFT_INSECURE=1           permits addresses beyond this host
//   WEFT_CERTIFICATE, WEFT_KEY, WEFT_TRUST, WEFT_SECRET   files of its credentials
// Where RANK is not set, rank, size, rank 0's host and a port are those of OpenMPI, of a Slurm step or of a
// Kubernetes indexed job; each variable above that is set prevails (docs/launching.md). Throws
// invalid_argument naming the variable that is missing or malformed, unavailable where MASTER_ADDR leads
// nowhere.
WEFT_EXPORT AgentOptions from_environment();

// The options of a job that one URL states, as PyTorch's init_method does:
//   env://                                  all is as from_environment() says
//   tcp://host:port?rank=R&world_size=N     rank 0 keeps the store, at that address
//   file:///path?rank=R&world_size=N        the store is a file that all share
//   etcd://host:port[,host:port][/prefix]?rank=R&world_size=N
// What the URL says prevails over the environment. What it does not is as from_environment() says: rank and
// world_size too, by whoever started the process, and who may come without a rank. Throws as that does, and
// invalid_argument naming the part of the URL that is malformed.
WEFT_EXPORT AgentOptions from_url(const std::string& url);

// The same, given the variables and which of this host's addresses leads to a host (local_address_towards).
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;
using LocalAddress = std::function<std::string(const std::string& host)>;
WEFT_EXPORT AgentOptions options_from(const VariableLookup& lookup, const LocalAddress& towards);
WEFT_EXPORT AgentOptions options_from(const std::string& url, const VariableLookup& lookup,
                                      const LocalAddress& towards);

}  // namespace weft::rpc
