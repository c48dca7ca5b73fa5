// StoredObjects: the objects that live on one agent, and the waits for their creation.
//
// Waits are served in the order of their arrival, including waits that arrive while earlier ones are being
// served. So calls on an object in creation keep the order of their callers. Owned by the RRefLayer. end()
// drops all objects. Thread-safe: no function is called and no object is destroyed with its mutex locked.
#pragma once

#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/result.h>
#include <weft/rref/protocol/ids.h>
#include <weft/rref/stored_object.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace weft::rref {

class WEFT_EXPORT StoredObjects {
 public:
  // The object or the error of its creation, and the function that receives it.
  using Found = rpc::Result<std::shared_ptr<StoredObject>>;
  using Done = rpc::UniqueFunction<void(Found)>;

  // true: `done` was called, or is about to be called. false: the creation has not ended; settle(), fail() or
  // end() will call `done`.
  bool when_alive(const RRefId& id, Done done);
  void settle(const RRefId& id, Found found);  // the object's creation has ended
  // The object will never be created: fails all waits.
  void fail(const RRefId& id, const std::exception_ptr& error);
  void remove(const RRefId& id);  // no reference to the object is left
  void end(const std::exception_ptr& error);
  std::vector<std::pair<RRefId, std::shared_ptr<StoredObject>>> alive() const;

 private:
  struct Waiting {
    std::exception_ptr failure;  // why the creation failed; null: it has not failed
    rpc::Fifo<Done> waiters;
    bool serving = false;  // a thread is in serve()
  };
  struct Entry {
    std::shared_ptr<StoredObject> object;
    std::unique_ptr<Waiting> waiting;  // null for most objects that exist

    bool settled() const { return object != nullptr || (waiting != nullptr && waiting->failure != nullptr); }
    bool serving() const { return waiting != nullptr && waiting->serving; }
    Found found() const { return object != nullptr ? Found(object) : Found(waiting->failure); }
    void settle(Found found);
    Waiting& waiters();
  };
  void serve(rpc::MutexLock& lock, const RRefId& id) WEFT_REQUIRES(mutex_);

  mutable rpc::Mutex mutex_;
  std::map<RRefId, Entry> entries_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr ended_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rref
