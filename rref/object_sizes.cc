#include <weft/rref/object_sizes.h>

namespace weft::rref {

ObjectSizes::ObjectSizes() {
  add([](const StoredObject& object) -> std::optional<std::uint64_t> {
    if (object.value().type->name != "str") return std::nullopt;
    const auto* text = object.as<std::string>();
    return text == nullptr ? std::nullopt : std::optional<std::uint64_t>(text->size());
  });
}

void ObjectSizes::add(Sizer sizer) {
  rpc::MutexLock lock(mutex_);
  sizers_.push_back(std::make_shared<const Sizer>(std::move(sizer)));
  sizer_of_type_.clear();
}

void ObjectSizes::measure(StoredObject& object) {
  const auto type = object.value().type->throw_pointer;
  if (type == nullptr) return;
  std::vector<std::shared_ptr<const Sizer>> sizers;
  std::optional<std::size_t> known;
  {
    rpc::MutexLock lock(mutex_);
    if (const auto found = sizer_of_type_.find(type); found != sizer_of_type_.end()) known = found->second;
    if (known == unknown) return;
    if (!known) {
      sizers = sizers_;
    } else if (*known != sized) {
      sizers = {sizers_[*known]};
    }
  }
  if (!known || *known == sized) {
    object.sized_ = object.as<Sized>();
    if (object.sized_ != nullptr) known = sized;
  }
  for (std::size_t i = 0;
       i < sizers.size() && object.sized_ == nullptr && object.bytes_ == StoredObject::unknown; ++i) {
    object.bytes_ = (*sizers[i])(object).value_or(StoredObject::unknown);
    if (object.bytes_ != StoredObject::unknown && !known) known = i;
  }
  rpc::MutexLock lock(mutex_);
  sizer_of_type_.try_emplace(type, known.value_or(unknown));
}

}  // namespace weft::rref
