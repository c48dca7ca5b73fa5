// Access from weft's opaque messages and values to Cap'n Proto's builders and readers; only for sources
// within weft.
#pragma once

#include <weft/rpc/wire/internal/frame_builder.h>
#include <weft/rpc/wire/message.capnp.h>
#include <weft/rpc/wire/message.h>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <new>

namespace weft::rpc {

struct OutgoingMessage::Content {
  FrameBuilder builder;
  schema::Header::Builder header = builder.initRoot<schema::Header>();
  // The parts of a request or a reply. Each pointer is followed only once.
  schema::Request::Builder request{nullptr};
  capnp::List<schema::Value>::Builder arguments;
  schema::Reply::Builder reply{nullptr};
  schema::Value::Builder result{nullptr};
  struct PendingSection {
    std::string key;
    bool required;
    capnp::Orphan<schema::Value> value;
  };
  std::vector<PendingSection> sections;
};

struct IncomingMessage::Content {
  Content(InboundFrame&& f, const Limits& limits);
  InboundFrame frame;
  capnp::FlatArrayMessageReader reader;
  schema::Header::Reader header;
  schema::Request::Reader request;
  schema::Reply::Reader reply;
  // These pointers are followed only once: each time a pointer is followed, Cap'n Proto charges everything
  // behind it to its traversal limit.
  capnp::List<schema::Value>::Reader arguments;
  capnp::List<schema::Section>::Reader sections;

  // The elements of a list of structs occupy space in the header, unless the sender made them empty. A list
  // with more elements than the header has words is refused, because memory is allocated according to the
  // list's size.
  template <class List>
  List sized(List list) const {
    if (list.size() > frame.header.size() / sizeof(capnp::word))
      throw Error(ErrorKind::protocol_error, "bad frame: a list of " + std::to_string(list.size()) +
                                                 " elements in a header of " +
                                                 std::to_string(frame.header.size()) + " bytes");
    return list;
  }
};

inline IncomingMessage::Content& IncomingMessage::content() { return *content_; }

namespace detail {

// Cap'n Proto reports malformed messages by kj::Exception, lazily, when a pointer is followed.
template <class F>
decltype(auto) checked(F&& f) {
  try {
    return f();
  } catch (const kj::Exception& exception) {
    throw Error(ErrorKind::protocol_error, std::string("bad frame: ") + exception.getDescription().cStr());
  }
}

struct ValueAccess {
  template <class T, class Storage>
  static auto& in(Storage& storage) {
    static_assert(sizeof(T) <= sizeof(Storage) && alignof(T) <= 8 && std::is_trivially_destructible_v<T>);
    return *std::launder(
        reinterpret_cast<std::conditional_t<std::is_const_v<Storage>, const T, T>*>(&storage));
  }

  template <class Handle = ValueWriter, class Builder>
  static Handle writer(Builder builder, OutgoingMessage& message) {
    Handle writer;
    ::new (static_cast<void*>(writer.builder_)) Builder(builder);
    writer.message_ = &message;
    return writer;
  }
  template <class Builder = schema::Value::Builder>
  static Builder& builder(Writer& writer) {
    return in<Builder>(writer.builder_);
  }

  static ValueReader reader(schema::Value::Reader reader, IncomingMessage& message) {
    ValueReader value;
    ::new (static_cast<void*>(value.reader_)) schema::Value::Reader(reader);
    value.message_ = &message;
    return value;
  }
  static const schema::Value::Reader& reader(const ValueReader& value) {
    return in<schema::Value::Reader>(value.reader_);
  }
  static IncomingMessage& message(const ValueReader& value) { return *value.message_; }
  // The elements of a sequence, opened only once (see Content::arguments).
  template <class List, class Open>
  static const typename List::Reader& elements(const ValueReader& value, Open open) {
    if (!value.opened_) {
      ::new (static_cast<void*>(value.elements_)) typename List::Reader(open());
      value.opened_ = true;
    }
    return in<typename List::Reader>(value.elements_);
  }
};

}  // namespace detail
}  // namespace weft::rpc
