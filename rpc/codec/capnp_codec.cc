#include <weft/rpc/codec/capnp_codec.h>

#include <weft/rpc/wire/internal/capnp_access.h>

namespace weft::rpc::detail {

capnp::AnyPointer::Builder object_builder(ValueWriter& writer, std::uint64_t type) {
  auto object = ValueAccess::builder(writer).initObject();
  object.setType(type);
  return object.getContent();
}

capnp::AnyPointer::Reader object_reader(const ValueReader& reader, std::uint64_t type) {
  if (reader.object_type() != type) reader.mismatch("a Cap'n Proto object of type " + std::to_string(type));
  return checked([&] { return ValueAccess::reader(reader).getObject().getContent(); });
}

}  // namespace weft::rpc::detail
