// ObjectSizes: the memory size of objects behind RRefs, for listings.
//
// Each listing calls bytes() of the objects whose type derives from Sized. For other types, a layer that
// knows the type states the size once, when the object has been created and before other code can use it. The
// layer that knows a type is cached. That no layer knows a type is cached, too, so the layers are asked only
// about the first object of such a type. Owned by the RRefLayer.
// Thread-safe.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rref/stored_object.h>

#include <functional>
#include <map>
#include <vector>

namespace weft::rref {

class WEFT_EXPORT ObjectSizes {
 public:
  // Returns the size of an object. nullopt: the layer does not know the type. Called on any thread.
  using Sizer = std::function<std::optional<std::uint64_t>(const StoredObject& object)>;

  ObjectSizes();
  // add(): adds the function of one layer; call it before the agent serves calls. measure(): call it once for
  // each object, when it is made.
  void add(Sizer sizer);
  void measure(StoredObject& object);

 private:
  static constexpr std::size_t sized = static_cast<std::size_t>(-1), unknown = static_cast<std::size_t>(-2);

  rpc::Mutex mutex_;
  std::vector<std::shared_ptr<const Sizer>> sizers_ WEFT_GUARDED_BY(mutex_);  // only ever appended to
  // By KeptType::throw_pointer, which is unique for a type.
  std::map<void (*)(void*), std::size_t> sizer_of_type_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rref
