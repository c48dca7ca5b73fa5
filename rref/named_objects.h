// NamedObjects: the named objects of one agent (rref::Named), which exist until the agent ends. A caller gets
// the object of a name, or creates it.
//
// The first caller of a name creates the object. Callers that arrive meanwhile wait for it, and later callers
// get it. A creation that fails leaves the name free for the next caller. Owned by the RRefLayer.
// Thread-safe: it calls and destroys nothing under its lock.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rref/stored_objects.h>

#include <string>
#include <vector>

namespace weft::rref {

class WEFT_EXPORT NamedObjects {
 public:
  // As in StoredObjects: the object or the error, and the function that receives it.
  using Found = StoredObjects::Found;
  using Done = StoredObjects::Done;

  // true: the name is free. The caller must create the object, and pass the object or the error to finish().
  // false: `done` receives the object, now or later, or an error. The error is already_exists if the object
  // was created with other `arguments`.
  bool begin(const std::string& name, const std::string& arguments, Done done);
  void finish(const std::string& name, Found found);
  void end(const std::exception_ptr& error);
  std::vector<std::shared_ptr<StoredObject>> alive() const;

 private:
  struct Entry {
    std::string arguments;
    std::shared_ptr<StoredObject> stored;  // null while it is being created
    std::vector<Done> waiting;
  };
  mutable rpc::Mutex mutex_;
  std::map<std::string, Entry> entries_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr ended_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rref
