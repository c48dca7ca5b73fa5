// A worker of the tests of `weft launch`, mpirun, srun: an agent by rpc::from_environment().
//
//   weft_launched meet [RANK]     fixed world: all agents meet and print their names; RANK ends with status 9
//   weft_launched train PUSHES    elastic world of servers and trainers: ends when every server has got this
//                                 number of pushes
//   weft_launched elastic DONE [LEASE]     elastic world: prints the members that join and leave, until the
//                                          file DONE exists, or until SIGTERM. LEASE: in seconds
//   weft_launched exclude FILE NAME WHY    excludes the worker NAME of a job whose store is FILE, as the
//   other
//                                          workers do if it makes no progress
//   weft_launched serve                    no job: a service that answers with its name and process, until
//                                          SIGTERM
//   weft_launched call ADDRESS...          calls the services at these addresses by a PeerSet, again and
//                                          again. Prints the first answer of each process, and each failure
//                                          after a success or a different failure
#include <weft/rpc/balance/peer_set.h>
#include <weft/rpc/job/environment.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/file_store.h>
#include <weft/rpc/rpc.h>

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace weft;

namespace {

int meet(int failing) {
  rpc::Job job = rpc::Job::from_environment();
  job.join().get();
  std::string names;
  for (const auto& [name, rank] : job.all_gather(static_cast<std::uint64_t>(job.rank())).get())
    names += " " + name + "=" + std::to_string(rank);
  std::printf("%s met%s\n", job.name().c_str(), names.c_str());
  std::fflush(stdout);
  job.barrier().get();
  if (failing == static_cast<int>(job.rank())) std::_Exit(9);
  if (failing >= 0 || job.rank() == 0)
    job.serve_until_shutdown();
  else
    job.leave().get();
  return 0;
}

class Server {
 public:
  explicit Server(std::size_t expected) : expected_(expected) {}

  std::uint64_t push(std::string trainer) {
    std::printf("pushed by %s\n", trainer.c_str());
    std::fflush(stdout);
    std::vector<rpc::Promise<void>> waiting;
    std::size_t pushes = 0;
    {
      std::lock_guard lock(mutex_);
      pushes = ++pushes_;
      if (pushes_ >= expected_) waiting.swap(waiting_);
    }
    for (auto& promise : waiting) promise.complete({});
    return pushes;
  }
  rpc::Future<void> trained() {
    std::lock_guard lock(mutex_);
    rpc::Promise<void> promise;
    auto future = promise.future();
    if (pushes_ >= expected_)
      promise.complete({});
    else
      waiting_.push_back(std::move(promise));
    return future;
  }
  using Service =
      rpc::Service<"server", rpc::Method<"push", &Server::push>, rpc::Method<"trained", &Server::trained>>;

 private:
  const std::size_t expected_;
  std::mutex mutex_;  // guards both
  std::size_t pushes_ = 0;
  std::vector<rpc::Promise<void>> waiting_;
};

int train(std::size_t pushes) {
  const rpc::MemberOptions options = rpc::from_environment();
  const bool serves = options.rendezvous.metadata.at("role") == "server";
  rpc::Job job{options};
  const auto server = std::make_shared<Server>(pushes);
  if (serves) job.agent().serve(server);
  job.wait_for(1).get();
  if (serves) {
    job.wait_for(2).get();  // a server that joined first would be alone, and would leave
    server->trained().get();
    job.serve_until_shutdown();
    return 0;
  }
  std::vector<rpc::Peer> servers;
  for (auto watch = job.watch_members(); servers.size() < 2;)
    for (const rpc::MemberEvent& event : watch->next().get())
      if (event.change == rpc::MemberChange::joined && event.member.metadata.at("role") == "server")
        servers.push_back(job.agent().peer(event.member.name));
  for (rpc::Peer& peer : servers) peer.call<&Server::push>(job.name()).get();
  for (rpc::Peer& peer : servers) peer.call<&Server::trained>().get();
  std::printf("%s trained\n", job.name().c_str());
  std::fflush(stdout);
  job.leave().get();
  return 0;
}

int elastic(const std::string& done, int lease) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &term, nullptr);  // also used by the agent's threads
  rpc::MemberOptions options = rpc::from_environment();
  if (lease != 0) options.rendezvous.lease = std::chrono::seconds(lease);
  rpc::Job job{options};
  job.join().get();
  std::thread watching([&job] {
    try {
      for (auto watch = job.watch_members();;)
        for (const rpc::MemberEvent& event : watch->next().get()) {
          std::printf("%s of rank %s: %s %s\n", job.name().c_str(), std::getenv("WEFT_ROLE_RANK"),
                      event.member.name.c_str(), std::string(rpc::to_string(event.change)).c_str());
          std::fflush(stdout);
        }
    } catch (const rpc::Error&) {
      // This member has left or is lost.
    }
  });
  const timespec pause{0, 20'000'000};
  bool told = false;
  while (!told && !std::filesystem::exists(done)) told = ::sigtimedwait(&term, nullptr, &pause) == SIGTERM;
  const auto left = rpc::capture([&] { job.leave().get(); });
  watching.join();
  if (!left.ok()) return 1;  // the others consider it lost
  return told ? 128 + SIGTERM : 0;
}

int exclude(const std::string& file, const std::string& name, const std::string& why) {
  rpc::FileStore store(file);
  const auto key = [&](std::string_view prefix) { return std::string(prefix) + name; };
  const std::uint64_t incarnation =
      rpc::from_text(name, store.get(key(rpc::membership_keys::members)).get()).incarnation;
  store.set(key(rpc::membership_keys::excluded), std::to_string(incarnation) + " " + why).get();
  store.close();
  return 0;
}

struct Kept {
  std::string answer() { return name + " " + std::to_string(::getpid()); }
  std::string name;
  using Service = rpc::Service<"kept", rpc::Method<"answer", &Kept::answer, rpc::idempotent>>;
};

int serve() {
  rpc::Agent agent{rpc::agent_from_environment()};
  agent.serve(std::make_shared<Kept>(agent.name()));
  std::puts("serves");
  std::fflush(stdout);
  for (;;) ::pause();  // a signal ends the process
}

int call(const std::vector<std::string>& addresses) {
  rpc::Agent agent{{.name = "client"}};
  const rpc::PeerSet services = rpc::PeerSet{agent, addresses}.with({.timeout = std::chrono::seconds{10}});
  std::set<std::string> answers;
  for (std::string last, now;; last = now) {
    try {
      now = services.call<&Kept::answer>().get();
      if (!answers.insert(now).second) continue;
    } catch (const rpc::Error& error) {
      now = "failed: " + std::string(rpc::to_string(error.kind()));
      if (now == last) continue;
    }
    std::printf("%s\n", now.c_str());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string what = argc > 1 ? argv[1] : "";
    if (what == "meet") return meet(argc > 2 ? std::atoi(argv[2]) : -1);
    if (what == "elastic" && argc > 2) return elastic(argv[2], argc > 3 ? std::atoi(argv[3]) : 0);
    if (what == "exclude" && argc > 4) return exclude(argv[2], argv[3], argv[4]);
    if (what == "train" && argc > 2) return train(static_cast<std::size_t>(std::atoi(argv[2])));
    if (what == "serve") return serve();
    if (what == "call") return call({argv + 2, argv + argc});
    std::fprintf(stderr, "meet, train, elastic, exclude, serve or call?\n");
    return 2;
  } catch (const rpc::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(rpc::to_string(error.kind())).c_str(), error.what());
    return 1;
  }
}
