#include "tools/weft/launch/elastic/job_store.h"

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/membership/roster.h>
#include <weft/rpc/store/memory_store.h>
#include <weft/rpc/store/store_service.h>

#include <asio/post.hpp>
#include <asio/steady_timer.hpp>

#include <optional>
#include <utility>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"
#include "tools/weft/launch/elastic/store_watch.h"

namespace weft::tool::launch::elastic {
namespace {

using namespace std::chrono_literals;

constexpr auto end_timeout = 2s;
// As long as the store remembers members that have left (rpc/membership): late readers can tell the two ends
// apart.
constexpr auto remembered = 3min;

std::string key_of(const std::string& name) { return std::string(rpc::membership_keys::members) + name; }

}  // namespace

class JobStore::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& context, Joined joined) : context_(context), joined_(std::move(joined)) {}

  void open(const JobStoreOptions& options) {
    if (options.url.starts_with("tcp:")) {
      keep(options);
    } else {
      auto opened = open_store(options.url);
      store_ = std::move(opened.store);
      close_store_ = std::move(opened.close);
    }
    watch_.emplace(context_, store_, std::string(rpc::membership_keys::members),
                   [this](const rpc::StoreChanges& changes) { looked(changes); });
  }

  const std::shared_ptr<rpc::Store>& store() const { return store_; }

  void end(const std::string& name, std::function<void(std::uint64_t)> done) {
    const auto timer = std::make_shared<asio::steady_timer>(context_, end_timeout);
    // Whichever is first.
    const auto finish = [timer, done = std::make_shared<std::function<void(std::uint64_t)>>(std::move(done))](
                            std::uint64_t incarnation) {
      timer->cancel();
      if (*done) std::exchange(*done, nullptr)(incarnation);
    };
    timer->async_wait([weak = weak_from_this(), finish](asio::error_code error) {
      if (!error && !weak.expired()) finish(0);
    });
    const auto finish_here = [this_context = &context_, weak = weak_from_this(),
                              finish](std::uint64_t incarnation) {
      asio::post(*this_context, [weak, finish, incarnation] {
        if (const auto self = weak.lock(); self != nullptr && !self->closed_) finish(incarnation);
      });
    };
    store_->try_get(key_of(name))
        .then([store = store_, name, finish_here](rpc::Result<std::optional<std::string>>&& result) {
          mark_lost(store, name, std::move(result), finish_here);
        });
  }

  void close() {
    closed_ = true;
    watch_.reset();
    if (close_store_) std::exchange(close_store_, nullptr)();
    agent_.reset();
  }

 private:
  // The driver's agent serves the store, and is no member of the job: members expect no host
  // (rpc/membership).
  void keep(const JobStoreOptions& options) {
    rpc::AgentOptions agent;
    agent.name = "driver";
    agent.listen = {options.url};
    agent.insecure = options.insecure;
    agent.handler_threads = 1;
    agent.log = [](const rpc::LogRecord&) {};
    const rpc::CredentialOptions& files = options.credentials;
    if (!files.certificate_file.empty() || !files.trust_file.empty() || !files.secret_file.empty())
      agent.credentials = std::make_shared<rpc::Credentials>(files);
    if (agent.credentials != nullptr && !agent.credentials->name().empty())
      agent.name = agent.credentials->name();
    try {
      agent_ = std::make_unique<rpc::Agent>(std::move(agent));
    } catch (const rpc::Error& error) {
      if (error.kind() == rpc::ErrorKind::permission_denied)
        throw UsageError("workers on other hosts need --secret FILE, certificates, or --insecure");
      throw UsageError("the job's store at " + options.url + ": " + printable(error.what()));
    }
    const auto memory = std::make_shared<rpc::MemoryStore>(agent_->core()->pick_loop());
    memory->set(std::string(rpc::membership_keys::host), "").get();
    rpc::serve_store(*agent_->core(), memory);
    close_store_ = [memory] { memory->close(); };
    store_ = memory;
  }

  void looked(const rpc::StoreChanges& changes) {
    for (const auto& [key, text] : changes.entries) {
      if (closed_ || !text || key.size() <= rpc::membership_keys::members.size()) continue;
      const std::string name = key.substr(rpc::membership_keys::members.size());
      const rpc::MemberRecord record = rpc::from_text(name, *text);
      if (record.here()) joined_(name, record.incarnation);
    }
  }

  template <class Finish>
  static void mark_lost(const std::shared_ptr<rpc::Store>& store, const std::string& name,
                        rpc::Result<std::optional<std::string>>&& result, const Finish& finish) {
    std::string before, after;
    std::uint64_t incarnation = 0;
    try {
      const auto text = std::move(result).get();
      if (text) {
        rpc::MemberRecord record = rpc::from_text(name, *text);
        incarnation = record.incarnation;
        if (!record.gone()) {
          record.state = rpc::MemberState::lost;
          before = *text;
          after = rpc::to_text(record);
        }
      }
    } catch (const rpc::Error&) {
      // The store is not reachable, and the lease will tell.
    }
    if (after.empty()) return finish(incarnation);
    store->grant(remembered)
        .then([store, name, before, after, incarnation, finish](rpc::Result<rpc::StoreLease>&& lease) {
          if (!lease.ok()) return finish(incarnation);
          // If the record has changed meanwhile, the worker has left after all.
          store->compare_set(key_of(name), before, after, lease.value().id)
              .then([incarnation, finish](rpc::Result<rpc::StoreExchange>&&) { finish(incarnation); });
        });
  }

  asio::io_context& context_;
  const Joined joined_;
  std::unique_ptr<rpc::Agent> agent_;
  std::shared_ptr<rpc::Store> store_;
  std::function<void()> close_store_;
  std::optional<StoreWatch> watch_;
  bool closed_ = false;
};

JobStore::JobStore(asio::io_context& context, const JobStoreOptions& options, Joined joined)
    : impl_(std::make_shared<Impl>(context, std::move(joined))) {
  impl_->open(options);
}
JobStore::~JobStore() { close(); }

void JobStore::end(const std::string& name, std::function<void(std::uint64_t)> done) {
  impl_->end(name, std::move(done));
}
const std::shared_ptr<rpc::Store>& JobStore::store() const { return impl_->store(); }
void JobStore::close() {
  if (impl_ != nullptr) impl_->close();
  impl_.reset();
}

}  // namespace weft::tool::launch::elastic
