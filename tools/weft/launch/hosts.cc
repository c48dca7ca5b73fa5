#include "tools/weft/launch/hosts.h"

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/transport/address.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/v6_only.hpp>

#include <cstdlib>
#include <random>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"

namespace weft::tool::launch {
using namespace std::chrono_literals;

// The methods that a launcher serves to the other launchers.
class LauncherService {
 public:
  void failed(Failure failure) {
    std::function<void(const Failure&)> tell;
    {
      rpc::MutexLock lock(mutex_);
      if (!tell_) return first_.push_back(failure);
      tell = tell_;
    }
    tell(failure);
  }
  void watch(std::function<void(const Failure&)> tell) {
    std::vector<Failure> before;
    {
      rpc::MutexLock lock(mutex_);
      tell_ = tell;
      before.swap(first_);
    }
    for (const Failure& failure : before) tell(failure);
  }
  using Service = rpc::Service<"launcher", rpc::Method<"failed", &LauncherService::failed>>;

 private:
  rpc::Mutex mutex_;
  std::function<void(const Failure&)> tell_ WEFT_GUARDED_BY(mutex_);
  std::vector<Failure> first_ WEFT_GUARDED_BY(mutex_);  // failures that arrived before watch()
};

namespace {

rpc::MemberOptions launcher_options(const HostsOptions& options) {
  rpc::MemberOptions agent;
  agent.name = "host" + std::to_string(options.own);
  const rpc::CredentialOptions& files = options.credentials;
  if (!files.certificate_file.empty() || !files.trust_file.empty() || !files.secret_file.empty()) {
    agent.credentials = std::make_shared<rpc::Credentials>(files);
    if (const std::string name = agent.credentials->name(); !name.empty()) agent.name = name;
  }
  const std::string store = "tcp://" + options.rendezvous;
  const rpc::Address address = rpc::Address::parse(store);
  // WEFT_HOST, as for workers: a pod may run before its name can be resolved.
  const char* const variable = std::getenv("WEFT_HOST");
  std::string own = variable == nullptr ? "" : variable;
  if (own.empty()) own = options.own == 0 ? address.host : rpc::local_address_towards(address.host);
  agent.listen = {rpc::Address{"tcp", own, options.own == 0 ? address.port : "0", {}}.text()};
  agent.insecure = options.insecure;
  agent.handler_threads = 1;
  agent.log = [](const rpc::LogRecord&) {};
  agent.rendezvous = rpc::Rendezvous{.store = store, .rank = options.own, .world_size = options.hosts};
  return agent;
}

}  // namespace

class Hosts::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const HostsOptions& options) : options_(options), job_(launcher_options(options)) {
    job_.agent().serve(launcher_);
  }

  std::vector<HostGreeting> meet(const HostGreeting& own) {
    job_.join().get();
    watch_ = job_.watch_members();
    const auto told = job_.all_gather(own).get();
    std::vector<HostGreeting> greetings(options_.hosts);
    for (const rpc::Member& member : job_.members())
      if (member.rank && told.contains(member.name)) greetings.at(*member.rank) = told.at(member.name);
    return greetings;
  }
  void watch(std::function<void(const Failure&)> failed) {
    launcher_->watch(failed);
    await_losses(std::move(failed));
  }
  void tell(const Failure& failure) {
    for (std::size_t host = 0; host < options_.hosts; ++host) {
      if (host == options_.own) continue;
      try {
        told_.push_back(job_.peer(host).with({.timeout = 5s}).call<&LauncherService::failed>(failure));
      } catch (const rpc::Error&) {
        // The other launcher has ended.
      }
    }
  }
  void leave(std::chrono::nanoseconds timeout) {
    for (auto& call : told_) {
      try {
        call.get();
      } catch (const rpc::Error&) {
        // The other launcher has ended, or it detects that this launcher leaves.
      }
    }
    try {
      if (options_.own == 0)
        job_.serve_until_shutdown(timeout);
      else
        job_.leave().get();
    } catch (const rpc::Error&) {
      // A loss, which the watch has already reported.
    }
  }
  void stop() { job_.agent().shut_down(); }

 private:
  void await_losses(std::function<void(const Failure&)> failed) {
    watch_->next().then(
        [self = weak_from_this(), failed](rpc::Result<std::vector<rpc::MemberEvent>>&& events) {
          const auto there = self.lock();
          if (there == nullptr) return;
          try {
            (void)std::move(events).get();
            there->await_losses(failed);
          } catch (const rpc::Error& error) {
            if (error.kind() != rpc::ErrorKind::shut_down && error.kind() != rpc::ErrorKind::aborted)
              failed({"a launcher", std::string("was lost: ") + error.what(), "", 1});
          }
        });
  }

  const HostsOptions options_;
  const std::shared_ptr<LauncherService> launcher_ = std::make_shared<LauncherService>();
  rpc::Job job_;
  std::unique_ptr<rpc::MemberWatch> watch_;
  std::vector<rpc::Future<void>> told_;
};

Hosts::Hosts(const HostsOptions& options) {
  try {
    impl_ = std::make_shared<Impl>(options);
  } catch (const rpc::Error& error) {
    if (error.kind() == rpc::ErrorKind::permission_denied)
      throw UsageError("launchers on several hosts need --secret FILE, certificates, or --insecure");
    if (error.kind() != rpc::ErrorKind::invalid_argument) throw;
    throw UsageError("--rendezvous " + options.rendezvous + ": " + printable(error.what()));
  }
}
Hosts::~Hosts() = default;

std::vector<HostGreeting> Hosts::meet(const HostGreeting& own) {
  auto all = impl_->meet(own);
  for (std::size_t host = 1; host < all.size(); ++host)
    if (all[host].elastic_world != all.front().elastic_world)
      throw UsageError("host " + std::to_string(host) + " and host 0 do not agree on --elastic");
  return all;
}
void Hosts::watch(std::function<void(const Failure&)> failed) { impl_->watch(std::move(failed)); }
void Hosts::tell(const Failure& failure) { impl_->tell(failure); }
void Hosts::leave(std::chrono::nanoseconds timeout) { impl_->leave(timeout); }
void Hosts::stop() { impl_->stop(); }

std::uint16_t free_port() {
  // The port is below the range from which Linux assigns ports to connections and to port 0, so no other
  // process gets it by chance before rank 0 listens.
  std::random_device random;
  std::uniform_int_distribution<unsigned> ports(15000, 29999);
  asio::io_context context;
  for (int tries = 0; tries < 1000; ++tries) {
    const auto port = static_cast<std::uint16_t>(ports(random));
    bool taken = false;
    for (const auto& protocol : {asio::ip::tcp::v4(), asio::ip::tcp::v6()}) {
      asio::ip::tcp::acceptor probe(context);
      asio::error_code error;
      probe.open(protocol, error);
      if (error) continue;  // the system has no IPv6
      if (protocol == asio::ip::tcp::v6()) probe.set_option(asio::ip::v6_only(true), error);
      probe.bind({protocol, port}, error);
      taken = taken || error == asio::error::address_in_use;
    }
    if (!taken) return port;
  }
  throw UsageError("no port is free: give one with --rendezvous");
}

}  // namespace weft::tool::launch
