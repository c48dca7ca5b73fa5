// ObjectSizes: what objects behind RRefs take of memory, for listings.
//
// A type that derives from Sized is asked whenever it is listed. Of others a layer that knows the type tells
// the size once, when the object is made and nobody else has it yet. Who knows a type is remembered, so that
// an object of a type that nobody knows costs one look-up. Owned by the RRefLayer. Thread-safe.
#pragma once

#include <weft/rref/stored_object.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

namespace weft::rref {

class WEFT_EXPORT ObjectSizes {
 public:
  // None: not one of its types. Asked on any thread.
  using Sizer = std::function<std::optional<std::uint64_t>(const StoredObject& object)>;

  ObjectSizes();
  void add(Sizer sizer);
  void measure(StoredObject& object);

 private:
  static constexpr std::size_t sized = static_cast<std::size_t>(-1), unknown = static_cast<std::size_t>(-2);

  std::mutex mutex_;                                      // guards what follows
  std::vector<std::shared_ptr<const Sizer>> sizers_;      // only ever appended to
  std::map<void (*)(void*), std::size_t> sizer_of_type_;  // by KeptType::throw_pointer, which is one a type
};

}  // namespace weft::rref
