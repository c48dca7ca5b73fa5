// Cap'n Proto types as arguments and results: include this header in addition to your generated header.
//
//   rpc::CapnpMessage<schema::Order> order;       // a message with that root; copies of the handle share it
//   order.builder().setAmount(3);
//
// The message is sent as an Object value, and is copied once on each side. rpc.h does not include this
// header, because this header needs Cap'n Proto's headers.
#pragma once

#include <weft/rpc/codec/codec.h>

#include <capnp/any.h>
#include <capnp/message.h>
#include <capnp/schema.h>
#include <kj/exception.h>

namespace weft::rpc {

namespace detail {
// Return the object in a value.
WEFT_EXPORT capnp::AnyPointer::Builder object_builder(ValueWriter& writer, std::uint64_t type);
WEFT_EXPORT capnp::AnyPointer::Reader object_reader(const ValueReader& reader, std::uint64_t type);
}  // namespace detail

template <class Root>
class CapnpMessage {
 public:
  CapnpMessage() : message_(std::make_shared<capnp::MallocMessageBuilder>()) { message_->initRoot<Root>(); }
  // Access to the message, which all copies share: they see what a builder writes.
  typename Root::Builder builder() { return message_->getRoot<Root>(); }
  typename Root::Reader reader() const { return message_->getRoot<Root>().asReader(); }

 private:
  friend struct Codec<CapnpMessage>;
  std::shared_ptr<capnp::MallocMessageBuilder> message_;
};

template <class Root>
struct Codec<CapnpMessage<Root>> {
  static constexpr std::uint64_t type = capnp::typeId<Root>();
  static void describe(TypeText& text) { text << "capnp(" << std::to_string(type) << ")"; }
  static void encode(ValueWriter writer, const CapnpMessage<Root>& value) {
    detail::object_builder(writer, type).template setAs<Root>(value.reader());
  }
  static CapnpMessage<Root> decode(ValueReader reader) {
    CapnpMessage<Root> value;
    try {
      value.message_->setRoot(detail::object_reader(reader, type).template getAs<Root>());
    } catch (const kj::Exception& malformed) {
      throw Error(ErrorKind::protocol_error, std::string("bad frame: ") + malformed.getDescription().cStr());
    }
    return value;
  }
};

}  // namespace weft::rpc
