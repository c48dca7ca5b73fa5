#include "tools/weft/launch/elastic/job_store.h"

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/memory_store.h>
#include <weft/rpc/job/store/store_service.h>

#include <atomic>
#include <optional>
#include <set>
#include <utility>

#include "tools/weft/errors.h"
#include "tools/weft/json_text.h"
#include "tools/weft/launch/elastic/store_watch.h"
#include "tools/weft/launch/elastic/takeover.h"

namespace weft::tool::launch::elastic {
namespace {

using namespace std::chrono_literals;

constexpr auto end_timeout = 2s;
// How long the record of a lost worker remains, as long as the records of members that have left
// (rpc/job/membership), so that late readers can distinguish the two ends.
constexpr auto remembered = 3min;

std::string key_of(const std::string& name) { return std::string(rpc::membership_keys::members) + name; }

// The driver's agent serves the store, and is not a member of the job. So the job has no host among its
// members (rpc/job/membership).
OpenedStore keep_store(const JobStoreOptions& options) {
  rpc::AgentOptions with;
  with.name = "driver";
  with.listen = {options.url};
  with.insecure = options.insecure;
  with.same_user = !options.insecure;  // the store is the door to the job
  with.handler_threads = 1;
  with.log = [](const rpc::LogRecord&) {};
  const rpc::CredentialOptions& files = options.credentials;
  if (!files.certificate_file.empty() || !files.trust_file.empty() || !files.secret_file.empty())
    with.credentials = std::make_shared<rpc::Credentials>(files);
  if (with.credentials != nullptr && !with.credentials->name().empty()) with.name = with.credentials->name();
  std::shared_ptr<rpc::Agent> agent;
  try {
    agent = std::make_shared<rpc::Agent>(std::move(with));
  } catch (const rpc::Error& error) {
    if (error.kind() == rpc::ErrorKind::permission_denied)
      throw UsageError("workers on other hosts need --secret FILE, certificates, or --insecure");
    throw UsageError("the job's store at " + options.url + ": " + printable(error.what()));
  }
  const auto memory = std::make_shared<rpc::MemoryStore>(agent->core()->pick_loop());
  memory->set(std::string(rpc::membership_keys::host), "").get();
  rpc::serve_store(*agent->core(), memory);
  return {memory, [memory, agent]() mutable {
            memory->close();
            agent.reset();
          }};
}

}  // namespace

OpenedStore open_job_store(const JobStoreOptions& options) {
  return options.url.starts_with("tcp:") ? keep_store(options) : open_store(options.url);
}

class JobStore::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::shared_ptr<rpc::Loop> loop, OpenedStore store, Joined joined)
      : loop_(std::move(loop)), opened_(std::move(store)), joined_(std::move(joined)) {
    watch_.emplace(loop_, opened_.store, std::string(rpc::membership_keys::members),
                   [this](const rpc::StoreChanges& changes) { looked(changes); });
  }

  const std::shared_ptr<rpc::Store>& store() const { return opened_.store; }

  void end(const std::string& name, std::function<void(const End&)> done, const std::string& driver) {
    // Continues after the answer of the store or after the timer, whichever is first.
    const auto timer = std::make_shared<rpc::Loop::TimerId>();
    const auto finish = [weak = weak_from_this(), timer, done = std::move(done)](const End& how) {
      const auto self = weak.lock();
      if (self == nullptr || self->timers_.erase(*timer) == 0) return;
      self->loop_->cancel(*timer);
      done(how);
    };
    // After the timer, a successor may have joined. Its record must not be changed.
    const auto given_up = std::make_shared<std::atomic<bool>>(false);
    *timer = loop_->schedule(loop_->now() + end_timeout, [finish, given_up] {
      *given_up = true;
      finish({});
    });
    timers_.insert(*timer);
    const auto finish_here = [loop = loop_, finish](const End& how) {
      loop->post([finish, how] { finish(how); });
    };
    store()
        ->try_get(key_of(name))
        .then([=, store = store()](rpc::Result<std::optional<std::string>>&& result) {
          if (*given_up) return;
          if (driver.empty()) return mark_lost(store, name, std::move(result), finish_here);
          store->try_get(std::string(takeover_keys::lease))
              .then([=, record = std::move(result)](rpc::Result<std::optional<std::string>>&& lease) mutable {
                if (*given_up) return;
                if (!lease.ok() || lease.value() != driver) return finish_here(End{});
                mark_lost(store, name, std::move(record), finish_here);
              });
        });
  }

  void close() {
    closed_ = true;
    for (const auto timer : std::exchange(timers_, {})) loop_->cancel(timer);
    watch_.reset();
    opened_.close();
  }

 private:
  void looked(const rpc::StoreChanges& changes) {
    const auto self = shared_from_this();  // the calls may close this
    for (const auto& [key, text] : changes.entries) {
      if (closed_ || !text || key.size() <= rpc::membership_keys::members.size()) continue;
      const std::string name = key.substr(rpc::membership_keys::members.size());
      auto record = rpc::capture([&name, &record_text = *text] { return rpc::from_text(name, record_text); });
      if (record.ok() && record.value().here()) joined_(name, record.value().incarnation);
    }
  }

  template <class Finish>
  static void mark_lost(const std::shared_ptr<rpc::Store>& store, const std::string& name,
                        rpc::Result<std::optional<std::string>>&& result, const Finish& finish) {
    std::string before, after;
    End end;
    try {
      const auto text = std::move(result).get();
      if (text) {
        rpc::MemberRecord record = rpc::from_text(name, *text);
        end = {record.incarnation, record.state == rpc::MemberState::left};
        if (!record.gone()) {
          record.state = rpc::MemberState::lost;
          before = *text;
          after = rpc::to_text(record);
        }
      }
    } catch (const rpc::Error&) {
      // The store cannot be reached. When the worker's lease expires, the other workers detect the loss.
    }
    if (after.empty()) return finish(end);
    store->grant(remembered)
        .then([store, name, before, after, end, finish](rpc::Result<rpc::StoreLease>&& lease) {
          if (!lease.ok()) return finish(end);
          // If the record has changed in the meantime, the worker has left the job after all, and the store
          // keeps that record.
          store->compare_set(key_of(name), before, after, lease.value().id)
              .then([end, finish](rpc::Result<rpc::StoreExchange>&&) { finish(end); });
        });
  }

  const std::shared_ptr<rpc::Loop> loop_;
  const OpenedStore opened_;
  const Joined joined_;
  std::optional<StoreWatch> watch_;
  std::set<rpc::Loop::TimerId> timers_;  // the timers of calls of end() that wait for the store
  bool closed_ = false;
};

JobStore::JobStore(std::shared_ptr<rpc::Loop> loop, OpenedStore store, Joined joined)
    : impl_(std::make_shared<Impl>(std::move(loop), std::move(store), std::move(joined))) {}
JobStore::~JobStore() { close(); }

void JobStore::end(const std::string& name, std::function<void(const End&)> done, const std::string& driver) {
  impl_->end(name, std::move(done), driver);
}
const std::shared_ptr<rpc::Store>& JobStore::store() const { return impl_->store(); }
void JobStore::close() {
  if (impl_ != nullptr) impl_->close();
  impl_.reset();
}

}  // namespace weft::tool::launch::elastic
