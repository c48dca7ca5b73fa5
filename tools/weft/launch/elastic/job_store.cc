#include "tools/weft/launch/elastic/job_store.h"

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/job/membership/roster.h>
#include <weft/rpc/job/store/memory_store.h>
#include <weft/rpc/job/store/store_service.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

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

std::optional<JobStore::Exclusion> exclusion_of(const std::string& text) {
  JobStore::Exclusion exclusion;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, exclusion.incarnation);
  if (error != std::errc{} || (end != last && *end != ' ')) return std::nullopt;
  exclusion.why =
      end == last ? "no reason is given" : printable(std::string(end + 1, std::find(end, last, '\n')));
  return exclusion;
}

}  // namespace

OpenedStore open_job_store(const JobStoreOptions& options) {
  return options.url.starts_with("tcp:") ? keep_store(options) : open_store(options.url);
}

class JobStore::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(std::shared_ptr<rpc::Loop> loop, OpenedStore store, std::function<void()> changed)
      : loop_(std::move(loop)), opened_(std::move(store)), changed_(std::move(changed)) {
    watch(rpc::membership_keys::members, records_, [](const std::string& name, const std::string& text) {
      auto record = rpc::capture([&] { return rpc::from_text(name, text); });
      return record.ok() ? std::optional(std::move(record.value())) : std::nullopt;
    });
    watch(rpc::membership_keys::excluded, exclusions_,
          [](const std::string&, const std::string& text) { return exclusion_of(text); });
  }

  const std::shared_ptr<rpc::Store>& store() const { return opened_.store; }
  bool reported() const { return reported_; }
  template <class T>
  static const T* find(const std::map<std::string, T>& entries, const std::string& name) {
    const auto found = entries.find(name);
    return found == entries.end() ? nullptr : &found->second;
  }
  const rpc::MemberRecord* record(const std::string& name) const { return find(records_, name); }
  const Exclusion* exclusion(const std::string& name) const { return find(exclusions_, name); }

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
    watches_.clear();
    opened_.close();
  }

 private:
  // Keeps the entries under a prefix, by the rest of their keys. read: nullopt if a value is malformed.
  template <class T, class Read>
  void watch(std::string_view prefix, std::map<std::string, T>& entries, Read read) {
    watches_.push_back(std::make_unique<StoreWatch>(
        loop_, opened_.store, std::string(prefix),
        [this, prefix, &entries, read](const rpc::StoreChanges& changes) {
          const auto self = shared_from_this();  // the call may close this
          if (changes.whole)
            std::erase_if(entries, [&](const auto& entry) {
              return !changes.entries.contains(std::string(prefix) + entry.first);
            });
          for (const auto& [key, text] : changes.entries) {
            const std::string name = key.substr(std::min(prefix.size(), key.size()));
            if (!text)
              entries.erase(name);
            else if (auto entry = read(name, *text))
              entries.insert_or_assign(name, *std::move(entry));
          }
          reported_ = reported_ || prefix == rpc::membership_keys::members;
          if (!closed_) changed_();
        }));
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
  const std::function<void()> changed_;
  std::map<std::string, rpc::MemberRecord> records_;
  std::map<std::string, Exclusion> exclusions_;
  std::vector<std::unique_ptr<StoreWatch>> watches_;
  std::set<rpc::Loop::TimerId> timers_;  // the timers of calls of end() that wait for the store
  bool reported_ = false, closed_ = false;
};

JobStore::JobStore(std::shared_ptr<rpc::Loop> loop, OpenedStore store, std::function<void()> changed)
    : impl_(std::make_shared<Impl>(std::move(loop), std::move(store), std::move(changed))) {}
JobStore::~JobStore() { close(); }

bool JobStore::reported() const { return impl_ != nullptr && impl_->reported(); }
const rpc::MemberRecord* JobStore::record(const std::string& name) const {
  return impl_ == nullptr ? nullptr : impl_->record(name);
}
const JobStore::Exclusion* JobStore::exclusion(const std::string& name) const {
  return impl_ == nullptr ? nullptr : impl_->exclusion(name);
}

void JobStore::end(const std::string& name, std::function<void(const End&)> done, const std::string& driver) {
  impl_->end(name, std::move(done), driver);
}
const std::shared_ptr<rpc::Store>& JobStore::store() const { return impl_->store(); }
void JobStore::close() {
  if (impl_ != nullptr) impl_->close();
  impl_.reset();
}

}  // namespace weft::tool::launch::elastic
