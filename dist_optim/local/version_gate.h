// VersionGate: the version of the parameters that a module's tensors hold, and the threads that read them.
//
// A module has one set of tensors, and the autograd graph of every pass over the module saved these tensors.
// So a pass that is pinned to an old version needs that version in the tensors whenever its code runs,
// including backward nodes. All readers of the loaded version may be inside at the same time. A reader of
// another version waits until no reader is inside; then the gate loads the version of that reader. An
// exclusive section also waits until no reader is inside. The owner's callback loads a version; the gate
// knows only numbers.
//
// Waits are served in the order of arrival, so that none starves. When the gate loads a version, all threads
// that already wait for that version enter together.
//
// Thread-safety: full. Calls may block the thread. A section (from enter() to leave(), or an exclusive one)
// is short, does not suspend, and ends on the thread on which it began. A thread that is inside may enter
// again and reads the version that it already reads. If it requests another version or an exclusive section,
// the request fails with `failed_precondition`, because it would never complete.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>

namespace weft::dist_optim {

class WEFT_EXPORT VersionGate {
 public:
  // The number of a version.
  using Version = std::uint64_t;
  // Loads this version into the module's tensors. Runs with no reader inside, under the gate's lock; must not
  // throw.
  using Load = std::function<void(Version)>;

  // loaded: the version that the tensors hold now.
  VersionGate(Version loaded, Load load);
  VersionGate(const VersionGate&) = delete;
  VersionGate& operator=(const VersionGate&) = delete;

  // Waits until this version is loaded. The thread is then inside until leave().
  void enter(Version version);
  // Like enter(), with the version that is the newest when the wait ends.
  void enter_newest();
  void leave();

  // Runs the section exclusively. A section that makes a new version must itself load it into the module's
  // tensors, and returns its number. If the section throws, exclusive() throws that exception, and the gate
  // continues with its present versions.
  void exclusive(const std::function<std::optional<Version>()>& section);

  // Loads the newest version if no thread is inside or waits: for an owner that no longer needs the loaded
  // older version.
  void settle();

  Version loaded() const;  // the version that the tensors hold
  // The number of waiting threads.
  std::size_t waiting() const;
  // The number of times that the gate loaded a reader's version in place of another version.
  std::uint64_t loads() const;

 private:
  struct Waiter {
    enum class Kind { version, newest, exclusive };
    Kind kind;
    Version version;
    std::thread::id thread;
    bool admitted = false;
    rpc::Condition wake{};
  };

  void wait_in_line(rpc::MutexLock& lock, Waiter::Kind kind, Version version) WEFT_REQUIRES(mutex_);
  void admit_waiting() WEFT_REQUIRES(mutex_);
  Version wanted_by(const Waiter& waiter) const WEFT_REQUIRES(mutex_);

  const Load load_;

  mutable rpc::Mutex mutex_;
  Version loaded_ WEFT_GUARDED_BY(mutex_);
  Version newest_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t loads_ WEFT_GUARDED_BY(mutex_) = 0;
  // How often each reading thread has entered.
  std::map<std::thread::id, int> inside_ WEFT_GUARDED_BY(mutex_);
  std::optional<std::thread::id> exclusive_ WEFT_GUARDED_BY(mutex_);  // the thread of an exclusive section
  std::deque<Waiter*> waiting_ WEFT_GUARDED_BY(mutex_);  // each lives on its waiting thread's stack
};

}  // namespace weft::dist_optim
