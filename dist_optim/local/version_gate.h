// VersionGate: which version of the parameters a module's tensors hold, and who reads them.
//
// A module has one set of tensors, and the autograd graph of every pass over it saved those very tensors.
// So a pass that is pinned to an old version needs that version back in them whenever its code runs,
// backward nodes included. Readers of the loaded version are inside together; a reader of another one
// waits until nobody is inside, and then the gate loads its version. An exclusive section waits in the
// same way. What loading means is the owner's callback; the gate knows numbers only.
//
// First come, first served, so that nobody starves; but when a version is loaded, all who already wait for
// it go in together.
//
// Thread-safety: full. Calls block, since sections are short and no section suspends: a section ends on
// the thread on which it began. A thread that is inside may enter again and reads what it reads already;
// to ask for another version or for an exclusive section there would never end, and is
// `failed_precondition`.
#pragma once

#include <weft/rpc/core/export.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

namespace weft::dist_optim {

class WEFT_EXPORT VersionGate {
 public:
  // The number of a version.
  using Version = std::uint64_t;
  // Makes the module's tensors hold this version. Runs with nobody inside, under the gate's lock; must not
  // throw.
  using Load = std::function<void(Version)>;

  // loaded: the version that the tensors hold now.
  VersionGate(Version loaded, Load load);
  VersionGate(const VersionGate&) = delete;
  VersionGate& operator=(const VersionGate&) = delete;

  // Waits until this version is loaded, and is inside until leave().
  void enter(Version version);
  // The same with the version that is newest when the turn comes.
  void enter_newest();
  void leave();

  // Runs the section alone. It may make a new version: it then returns that version's number and has itself
  // brought it into the module's tensors. What the section throws comes out here, and the gate goes on with
  // the versions it had.
  void exclusive(const std::function<std::optional<Version>()>& section);

  // Loads the newest version if nobody is inside or waits: for an owner that no longer needs an older one.
  void settle();

  Version loaded() const;  // the version that the tensors hold
  // How many threads stand in line.
  std::size_t waiting() const;
  // How often a reader's version had to be loaded in place of another.
  std::uint64_t loads() const;

 private:
  struct Waiter {
    enum class Kind { version, newest, exclusive };
    Kind kind;
    Version version;
    std::thread::id thread;
    bool admitted = false;
    std::condition_variable wake{};
  };

  void wait_in_line(std::unique_lock<std::mutex>& lock, Waiter::Kind kind, Version version);
  void admit_waiting();
  Version wanted_by(const Waiter& waiter) const;

  const Load load_;

  mutable std::mutex mutex_;  // guards all that follows
  Version loaded_;
  Version newest_;
  std::uint64_t loads_ = 0;
  std::map<std::thread::id, int> inside_;     // how often each reading thread has entered
  std::optional<std::thread::id> exclusive_;  // who runs an exclusive section
  std::deque<Waiter*> waiting_;               // each lives on its waiting thread's stack
};

}  // namespace weft::dist_optim
