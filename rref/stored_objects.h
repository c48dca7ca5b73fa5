// StoredObjects: the objects that live on one agent, and those who wait for one to come to life.
//
// Who waits is served in the order in which they came, also by calls that come while the waiting ones are
// served: so calls on an object that is still being made keep their callers' order. Owned by the RRefLayer,
// which holds each object by its id; end() drops all. Thread-safe: it calls and destroys nothing under its
// lock.
#pragma once

#include <weft/rpc/core/fifo.h>
#include <weft/rpc/core/result.h>
#include <weft/rref/protocol/ids.h>
#include <weft/rref/stored_object.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace weft::rref {

class WEFT_EXPORT StoredObjects {
 public:
  using Found = rpc::Result<std::shared_ptr<StoredObject>>;
  using Done = rpc::UniqueFunction<void(Found)>;

  // False: the creation has not ended; `done` is called by settle(), fail() or end(). True: called, or about
  // to be.
  bool when_alive(const RRefId& id, Done done);
  void settle(const RRefId& id, Found found);                    // its creation has ended
  void fail(const RRefId& id, const std::exception_ptr& error);  // it will never be created: tells who waits
  void remove(const RRefId& id);                                 // nobody holds it any more
  void end(const std::exception_ptr& error);
  std::vector<std::pair<RRefId, std::shared_ptr<StoredObject>>> alive() const;

 private:
  struct Waiting {
    std::exception_ptr failure;  // instead of the object
    rpc::Fifo<Done> waiters;
    bool serving = false;  // some thread is in serve()
  };
  struct Entry {
    std::shared_ptr<StoredObject> object;
    std::unique_ptr<Waiting> waiting;  // of one that is there, mostly nothing

    bool settled() const { return object != nullptr || (waiting != nullptr && waiting->failure != nullptr); }
    bool serving() const { return waiting != nullptr && waiting->serving; }
    Found found() const { return object != nullptr ? Found(object) : Found(waiting->failure); }
    void settle(Found found);
    Waiting& waiters();
  };
  void serve(std::unique_lock<std::mutex>& lock, const RRefId& id);

  mutable std::mutex mutex_;  // guards what follows
  std::map<RRefId, Entry> entries_;
  std::exception_ptr ended_;
};

}  // namespace weft::rref
