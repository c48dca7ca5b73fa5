// VersionGate: the version of the parameters that a module's tensors hold, and the threads that read them.
//
// A module has one set of tensors, and the autograd graph of every pass over it saved these tensors. So a
// pass that is pinned to an old version needs that version in them whenever its code runs, including backward
// nodes. Readers of the loaded version are inside together. A reader of another version waits until no reader
// is inside, and then the gate loads its version. An exclusive section waits in the same way. The owner's
// callback loads; the gate knows only numbers.
//
// Waits are served in the order of arrival, so that none starves. When a version is loaded, all that already
// wait for it enter together.
//
// Thread-safety: full. Calls block, because sections are short and no section suspends: a section ends on the
// thread on which it began. A thread that is inside may enter again and reads the version that it already
// reads. A request for another version or for an exclusive section would never complete there, and fails with
// `failed_precondition`.
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

  // Waits until this version is loaded, and is inside until leave().
  void enter(Version version);
  // The same with the version that is newest when the wait ends.
  void enter_newest();
  void leave();

  // Runs the section exclusively. If it makes a new version, it returns that version's number and has itself
  // loaded it into the module's tensors. An exception of the section is thrown here, and the gate continues
  // with its present versions.
  void exclusive(const std::function<std::optional<Version>()>& section);

  // Loads the newest version if no thread is inside or waits: for an owner that no longer needs an older one.
  void settle();

  Version loaded() const;  // the version that the tensors hold
  // The number of waiting threads.
  std::size_t waiting() const;
  // The number of times that a reader's version had to be loaded in place of another.
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
