// StoredObject: an object on its owner, behind RRefs: its value, its turn, and what layers above attached to
// it.
//
// Several RRefIds may share one (rref::Named). Calls on it run one at a time on its turn, unless its type
// says `static constexpr bool concurrent = true`; a handler that suspends lets others in. Whoever lets go of
// it last, the value is destroyed on the handlers' threads, in its turn. Thread-safe where said.
#pragma once

#include <weft/rpc/agent/incoming_call.h>
#include <weft/rpc/core/serial_executor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace weft::rref {

// A layer's say over the calls on one object (an optimizer that keeps parameter versions).
class WEFT_EXPORT ObjectGuard {
 public:
  virtual ~ObjectGuard() = default;
  // In the object's turn, before the call's handler: see IncomingCall::set_admission.
  virtual void admit(const std::shared_ptr<rpc::IncomingCall>& call, rpc::Callback proceed) = 0;
  // For a layer that reads or writes the object's memory in the name of a service of its own: runs `body`
  // now, with the newest state in place, while nobody changes it, or reads it. What calls that are under way
  // have read stays as it was for them: a guard that cannot see to that throws failed_precondition.
  virtual void read(const std::function<void()>& body) = 0;
  virtual void change(const std::function<void()>& body) = 0;
};

// What a type may derive from so that listings tell its size.
class WEFT_EXPORT Sized {
 public:
  virtual ~Sized() = default;
  virtual std::uint64_t bytes() const = 0;  // any thread, also while the object runs
};

class WEFT_EXPORT StoredObject {
 public:
  // threads: kept, since a pointer to the value may outlive its agent.
  StoredObject(rpc::KeptValue value, std::shared_ptr<rpc::Executor> threads)
      : threads_(std::move(threads)), value_(std::move(value)), turn_(*threads_) {}
  // A part of another object (a module's parameter): it has its turn and its guard.
  StoredObject(rpc::KeptValue value, std::shared_ptr<StoredObject> whole)
      : threads_(whole->threads_), whole_(std::move(whole)), value_(std::move(value)), turn_(*threads_) {}
  ~StoredObject() {
    turn().post([value = std::move(value_.value)]() mutable { value.reset(); });
  }
  StoredObject(const StoredObject&) = delete;
  StoredObject& operator=(const StoredObject&) = delete;

  const rpc::KeptValue& value() const { return value_; }
  // What runs on the object does so here, one after the other.
  rpc::Executor& turn() { return whole_ != nullptr ? whole_->turn() : turn_; }
  static std::shared_ptr<rpc::Executor> turn_of(const std::shared_ptr<StoredObject>& object) {
    return {object, &object->turn()};
  }

  // The object as a Base, or null where its type is not derived from it (publicly, unambiguously). About 2
  // µs.
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

  // What it takes of memory: of a type that declares it (Sized) as it is now, else as it was when it was
  // made; none where nobody knows.
  std::optional<std::uint64_t> bytes() const {
    if (sized_ != nullptr) return sized_->bytes();
    return bytes_ == unknown ? std::nullopt : std::optional(bytes_);
  }

  // At most one guard; attached once, any thread.
  std::shared_ptr<ObjectGuard> guard() const {
    if (whole_ != nullptr) return whole_->guard();
    return guarded_.load(std::memory_order_acquire) ? guard_ : nullptr;
  }
  // The guard that is attached, or `make`'s, which becomes it.
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
  const std::shared_ptr<StoredObject> whole_;  // that this is a part of
  rpc::KeptValue value_;
  rpc::SerialExecutor turn_;       // not of a part
  std::uint64_t bytes_ = unknown;  // like sized_, set before anybody else has the object
  const Sized* sized_ = nullptr;
  std::once_flag attached_;
  std::atomic<bool> guarded_{false};
  std::shared_ptr<ObjectGuard> guard_;  // written once, before guarded_
};

}  // namespace weft::rref
