// Mutex, MutexLock, MutexUnlock, Condition: std::mutex, std::unique_lock and std::condition_variable with the
// annotations of clang's thread-safety analysis, a part of each build with clang. libstdc++'s own types have
// none.
//
// A member with WEFT_GUARDED_BY(mutex_) is used only with mutex_ locked. A function with
// WEFT_REQUIRES(mutex_) is called only with mutex_ locked. A lambda has its annotation after its parameters:
//   ready_.wait(lock, [this]() WEFT_REQUIRES(mutex_) { return is_ready_; });
// The analysis skips constructors and destructors. For compilers other than clang the macros expand to
// nothing, and the types cost as much as those of the standard library. The thread-safety is that of the
// types of the standard library.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

// Adds an attribute of clang's thread-safety analysis.
#if defined(__clang__)
#define WEFT_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define WEFT_THREAD_SAFETY(attribute)  // nothing
#endif

// For a member that is used only with the mutex locked.
#define WEFT_GUARDED_BY(mutex) WEFT_THREAD_SAFETY(guarded_by(mutex))
// For a function whose callers must have locked the mutexes.
#define WEFT_REQUIRES(...) WEFT_THREAD_SAFETY(requires_capability(__VA_ARGS__))
// For a function whose callers must not have locked any of the mutexes.
#define WEFT_EXCLUDES(...) WEFT_THREAD_SAFETY(locks_excluded(__VA_ARGS__))
// For a function that locks the mutexes.
#define WEFT_ACQUIRE(...) WEFT_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
// For a function that unlocks the mutexes.
#define WEFT_RELEASE(...) WEFT_THREAD_SAFETY(release_capability(__VA_ARGS__))

namespace weft::rpc {

// The equivalent of std::mutex. Not recursive.
class WEFT_THREAD_SAFETY(capability("mutex")) Mutex {
 public:
  // Lock and unlock, as std::mutex does; prefer MutexLock.
  void lock() WEFT_ACQUIRE() { mutex_.lock(); }
  void unlock() WEFT_RELEASE() { mutex_.unlock(); }
  bool try_lock() WEFT_THREAD_SAFETY(try_acquire_capability(true)) { return mutex_.try_lock(); }
  // Tells the analysis that the mutex is locked. Call it in a lambda that runs with the mutex locked, if the
  // analysis cannot see that. Checks nothing at run time.
  void assume_locked() const WEFT_THREAD_SAFETY(assert_capability(this)) {}

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// The equivalent of std::unique_lock: holds the lock until it is destroyed, except between unlock() and
// lock().
class WEFT_THREAD_SAFETY(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WEFT_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  // Takes over a mutex that try_lock() has locked.
  MutexLock(Mutex& mutex, std::adopt_lock_t adopt) WEFT_REQUIRES(mutex) : lock_(mutex.mutex_, adopt) {}
  ~MutexLock() WEFT_RELEASE() {}
  void lock() WEFT_ACQUIRE() { lock_.lock(); }
  void unlock() WEFT_RELEASE() { lock_.unlock(); }

 private:
  friend class Condition;
  friend class MutexUnlock;
  std::unique_lock<std::mutex> lock_;
};

// Unlocks the caller's lock as long as the MutexUnlock exists. The second parameter is the mutex of the lock,
// because the analysis needs it.
class WEFT_THREAD_SAFETY(scoped_lockable) MutexUnlock {
 public:
  MutexUnlock(MutexLock& lock, [[maybe_unused]] Mutex& mutex) WEFT_RELEASE(mutex) : lock_(lock.lock_) {
    lock_.unlock();
  }
  ~MutexUnlock() WEFT_RELEASE() { lock_.lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  std::unique_lock<std::mutex>& lock_;
};

// The equivalent of std::condition_variable.
class Condition {
 public:
  // notify_one() wakes one of the waiting threads, notify_all() all of them.
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  // Without `holds`: waits for one notification or a spurious wake-up. With `holds`: waits until `holds`
  // returns true. `holds` runs with the mutex locked.
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  template <class Predicate>
  void wait(MutexLock& lock, Predicate holds) {
    condition_.wait(lock.lock_, std::move(holds));
  }
  // Waits like wait(), for at most that duration. Returns the last result of `holds`.
  template <class Duration, class Predicate>
  bool wait_for(MutexLock& lock, const Duration& duration, Predicate holds) {
    return condition_.wait_for(lock.lock_, duration, std::move(holds));
  }
  // Waits like wait(), until that time at most. Returns the last result of `holds`.
  template <class Time, class Predicate>
  bool wait_until(MutexLock& lock, const Time& time, Predicate holds) {
    return condition_.wait_until(lock.lock_, time, std::move(holds));
  }

 private:
  std::condition_variable condition_;
};

}  // namespace weft::rpc
