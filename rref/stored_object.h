// StoredObject: an object behind RRefs, on its owner. It has the value, the turn in which calls run, and the
// attachments of higher layers.
//
// Several RRefIds may refer to one StoredObject (rref::Named). Calls on it run one at a time in its turn,
// unless its type declares `static constexpr bool concurrent = true`; a handler that suspends ends its turn.
// The value is destroyed on the handler threads, in its turn, whichever agent has the last reference.
// Thread-safe where stated.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/core/serial_executor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace weft::rref {

// A layer's control over the calls on one object (an optimizer that keeps parameter versions).
class WEFT_EXPORT ObjectGuard {
 public:
  virtual ~ObjectGuard() = default;
  // Called in the object's turn, before the call's handler (IncomingCall::set_admission).
  virtual void admit(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Callback proceed) = 0;
  // For a layer whose own service reads or writes the object's memory. Runs `body` now, with the newest state
  // in the object's memory. read() excludes changes of the state, and change() excludes changes and reads.
  // Calls in flight keep the state that they have read. A guard that cannot ensure this throws
  // failed_precondition.
  virtual void read(const std::function<void()>& body) = 0;
  virtual void change(const std::function<void()>& body) = 0;
};

// Base class of types whose size is shown in listings.
class WEFT_EXPORT Sized {
 public:
  virtual ~Sized() = default;
  virtual std::uint64_t bytes() const = 0;  // any thread, even while a call of the object runs
};

class WEFT_EXPORT StoredObject {
 public:
  // threads: the object keeps them, because a pointer to the value may outlive its agent.
  StoredObject(rpc::KeptValue value, std::shared_ptr<rpc::Executor> threads)
      : threads_(std::move(threads)), value_(std::move(value)), turn_(*threads_) {}
  // A part of another object (a module's parameter). It shares the turn and the guard of `whole`.
  StoredObject(rpc::KeptValue value, std::shared_ptr<StoredObject> whole)
      : threads_(whole->threads_), whole_(std::move(whole)), value_(std::move(value)), turn_(*threads_) {}
  ~StoredObject() {
    turn().post([value = std::move(value_.value)]() mutable { value.reset(); });
  }
  StoredObject(const StoredObject&) = delete;
  StoredObject& operator=(const StoredObject&) = delete;

  // The value. Access it in the object's turn, unless its type is concurrent.
  const rpc::KeptValue& value() const { return value_; }
  // Runs the jobs of the object, one after another.
  rpc::Executor& turn() { return whole_ != nullptr ? whole_->turn() : turn_; }
  static std::shared_ptr<rpc::Executor> turn_of(const std::shared_ptr<StoredObject>& object) {
    return {object, &object->turn()};
  }

  // The object as a Base, or null if its type is not derived from Base (publicly, unambiguously). About 2 µs.
  template <class Base>
  Base* as() const {
    const auto throw_pointer = value_.type->throw_pointer;
    if (throw_pointer == nullptr) return nullptr;
    try {
      throw_pointer(value_.value.get());
    } catch (Base* base) {
      return base;
    } catch (...) {
    }
    return nullptr;
  }

  // The memory size of the object: the current size if its type is Sized, otherwise the size at its creation.
  // nullopt: unknown.
  std::optional<std::uint64_t> bytes() const {
    if (sized_ != nullptr) return sized_->bytes();
    return bytes_ == unknown ? std::nullopt : std::optional(bytes_);
  }

  // The attached guard; null: none. At most one guard is attached, once. Any thread.
  std::shared_ptr<ObjectGuard> guard() const {
    if (whole_ != nullptr) return whole_->guard();
    return guarded_.load(std::memory_order_acquire) ? guard_ : nullptr;
  }
  // Returns the attached guard. If no guard is attached, attaches the guard that `make` returns.
  template <class Make>
  std::shared_ptr<ObjectGuard> attach_guard(Make make) {
    if (whole_ != nullptr) return whole_->attach_guard(std::move(make));
    std::call_once(attached_, [&] {
      guard_ = make();
      guarded_.store(true, std::memory_order_release);
    });
    return guard_;
  }

 private:
  friend class ObjectSizes;
  static constexpr auto unknown = static_cast<std::uint64_t>(-1);

  const std::shared_ptr<rpc::Executor> threads_;
  const std::shared_ptr<StoredObject> whole_;  // the object that this is a part of
  rpc::KeptValue value_;
  rpc::SerialExecutor turn_;       // unused if this is a part of another object
  std::uint64_t bytes_ = unknown;  // set, like sized_, before other code can use the object
  const Sized* sized_ = nullptr;
  std::once_flag attached_;
  std::atomic<bool> guarded_{false};
  std::shared_ptr<ObjectGuard> guard_;  // written once, before guarded_
};

}  // namespace weft::rref
