// All decoders of bytes from the wire, run over any bytes. Tests of mutated frames and the fuzzers share
// them.
#pragma once

#include <weft/rpc/transport/frame_reader.h>
#include <weft/rpc/wire/value.h>

#include <functional>

#include "tests/support/probe.h"

namespace weft::rpc::probe {

// Called with the rule that a decoder has violated.
using Wrong = std::function<void(const std::string& what)>;

// Runs f, which may only throw the errors that decoders have for invalid bytes. Returns false if it threw.
template <class F>
bool reads(const Wrong& wrong, F f) {
  try {
    f();
    return true;
  } catch (const Error& error) {
    const ErrorKind kind = error.kind();
    if (kind != ErrorKind::protocol_error && kind != ErrorKind::resource_exhausted &&
        kind != ErrorKind::type_mismatch && kind != ErrorKind::unsupported)
      wrong("a decoder threw " + std::string(to_string(kind)) + ": " + error.what());
  } catch (const std::exception& other) {
    wrong(std::string("a decoder threw what is no Error: ") + other.what());
  }
  return false;
}

// Reads every byte of a value. The first few values are also read by every reader of another type, and beyond
// their end.
class Walk {
 public:
  explicit Walk(const Wrong& wrong) : wrong_(wrong) {}

  void value(const ValueReader& value) {
    if (refusals_ != 0) {
      --refusals_;
      refused(value);
    }
    switch (value.kind()) {
      case ValueKind::nil:
        return;
      case ValueKind::boolean:
        return touch(value.get_bool());
      case ValueKind::int_:
        return touch(value.get_int());
      case ValueKind::uint:
        return touch(value.get_uint());
      case ValueKind::real:
        return touch(value.get_real());
      case ValueKind::text:
        return bytes(std::as_bytes(std::span(value.get_text())));
      case ValueKind::bytes:
        return bytes(value.get_bytes());
      case ValueKind::attachment:
        return bytes(value.get_attachment().bytes());
      case ValueKind::object:
        return touch(value.object_type());
      case ValueKind::variant:
        touch(value.variant_index());
        return this->value(value.variant_value());
      default:
        for (std::size_t i = 0, n = value.size(); i < n; ++i) element(value, i);
    }
  }

 private:
  void refused(const ValueReader& value) {
    reads(wrong_, [&] { touch(value.get_bool()); });
    reads(wrong_, [&] { touch(value.get_int()); });
    reads(wrong_, [&] { touch(value.get_uint()); });
    reads(wrong_, [&] { touch(value.get_real()); });
    reads(wrong_, [&] { bytes(std::as_bytes(std::span(value.get_text()))); });
    reads(wrong_, [&] { bytes(value.get_bytes()); });
    reads(wrong_, [&] { bytes(value.get_attachment().bytes()); });
    reads(wrong_, [&] { touch(value.object_type()); });
    reads(wrong_, [&] { touch(value.variant_value().kind()); });
    ValueReader field;
    for (const std::string_view name : {"", "text", "choice", "nowhere"})
      reads(wrong_, [&] {
        if (value.find_field(name, 2, field)) touch(field.kind());
      });
    std::size_t n = 0;
    if (!reads(wrong_, [&] { n = value.size(); })) return;
    for (const std::size_t i : {n, n + 1, std::size_t{1} << 32, std::size_t{1} << 63})
      if (reads(wrong_, [&] { element(value, i); })) wrong_("an element beyond the end");
  }
  template <class T>
  void touch(T value) {
    bytes(std::as_bytes(std::span(&value, 1)));
  }
  void bytes(std::span<const std::byte> all) { seen_ = crc32c(all, seen_); }
  void element(const ValueReader& sequence, std::size_t i) {
    switch (sequence.kind()) {
      case ValueKind::list:
        return value(sequence.at(i));
      case ValueKind::record:
        bytes(std::as_bytes(std::span(sequence.field_name(i))));
        return value(sequence.field_at(i));
      case ValueKind::map:
        value(sequence.map_key(i));
        return value(sequence.map_value(i));
      case ValueKind::ints:
        return touch(sequence.int_at(i));
      default:
        return touch(sequence.real_at(i));
    }
  }

  const Wrong& wrong_;
  std::uint32_t seen_ = 0;
  int refusals_ = 12;
};

class Decoders {
 public:
  explicit Decoders(Wrong wrong) : wrong_(std::move(wrong)) {}

  std::size_t frames = 0, refused = 0, rendered = 0, decoded = 0;

  // Feeds the bytes of a connection, `piece` bytes at a time, until a piece is refused. Does so once as a
  // trusted peer and once as another peer.
  void stream(std::span<const std::byte> bytes, std::size_t piece = SIZE_MAX) {
    stream(bytes, piece, false);
    stream(bytes, piece, true);
  }

 private:
  void stream(std::span<const std::byte> bytes, std::size_t piece, bool guarded) {
    FrameReader reader(small_limits());
    if (guarded) reader.guard();
    std::size_t announced = 0;
    bool greeted = !guarded;
    const bool whole = reads(wrong_, [&] {
      while (!bytes.empty()) {
        std::size_t taken = 0;
        for (const auto target : reader.targets()) {
          const std::size_t n = std::min({target.size(), bytes.size(), piece - taken});
          std::copy_n(bytes.begin(), n, target.begin());
          bytes = bytes.subspan(n);
          taken += n;
        }
        reader.advance(taken);
        for (;;) {
          if (auto frame = reader.next()) {
            greeted = greeted || frame->prefix.kind == FrameKind::hello;
            if (!frame->header.empty()) message(*frame);
          } else if (reader.announced() == nullptr) {
            break;
          } else if (++announced % 2 == 0 && reader.can_skip()) {
            reader.skip();
          } else {
            reader.admit(nullptr);
          }
        }
        if (!greeted && taken > Prefix::size + Prefix::max_control_header)
          wrong_("more than a Hello was buffered before it came");
      }
    });
    if (!whole) ++refused;
  }

  // Reads the payload of an error, if it has one.
  void failure(const std::optional<FailureInfo>& found) {
    if (!found || found->payload == nullptr) return;
    if (found->payload->type.size() + found->payload->bytes.size() > max_error_payload)
      wrong_("a payload above its limit");
    Error error(found->kind, found->message);
    error.set_payload(found->payload);
    (void)payload<Small>(error);
  }

  // Each f gets its own reader, because Cap'n Proto counts the bytes that a reader reads.
  template <class F>
  bool with(const InboundFrame& frame, F f) {
    return reads(wrong_, [&] {
      IncomingMessage message(frame, small_limits());
      f(message);
    });
  }

  void message(const InboundFrame& frame) {
    ++frames;
    if (frame.header.size() + frame.prefix.body_bytes > small_limits().header + small_limits().message)
      wrong_("a frame above the limits");
    // Reads the frame as every kind. A missing field reads as its default, or the reader refuses the frame.
    with(frame, [&](IncomingMessage& message) {
      reads(wrong_, [&] { (void)message.goodbye(); });
      reads(wrong_, [&] { failure(message.failure()); });
      reads(wrong_, [&] { (void)message.request(); });
      reads(wrong_, [&] { (void)message.credit(); });
      reads(wrong_, [&] { (void)message.hello(); });
      reads(wrong_,
            [&] { (void)message.unknown_required([](std::string_view key) { return key == "rref"; }); });
      reads(wrong_, [&] { (void)message.attachment(~0U); });
    });
    for (const std::string_view key : {"rref", "pass", ""})
      values(frame, [&](IncomingMessage& message) { return message.section(key); });
    if (frame.prefix.kind == FrameKind::reply)
      values(frame, [](IncomingMessage& message) { return std::optional(message.result()); });
    std::size_t arguments = 0;
    with(frame, [&](IncomingMessage& message) { arguments = message.argument_count(); });
    for (std::size_t i = 0; i < std::min<std::size_t>(arguments, 4); ++i)
      values(frame, [i](IncomingMessage& message) { return std::optional(message.argument(i)); });
  }

  template <class Get>
  void values(const InboundFrame& frame, Get get) {
    const auto each = [&](auto use) {
      with(frame, [&](IncomingMessage& message) {
        if (const std::optional<ValueReader> value = get(message)) use(*value);
      });
    };
    each([this](const ValueReader& value) { Walk(wrong_).value(value); });
    each([&](const ValueReader& value) {
      (void)render(value);
      ++rendered;
    });
    typed<Everything, std::vector<Everything>, std::string, std::vector<Buffer>, Buffer, Foreign, Unit, bool,
          std::vector<std::optional<std::int64_t>>, std::vector<double>, std::vector<std::int8_t>,
          std::array<float, 2>, std::array<std::uint8_t, 40>, std::map<std::string, ValueTree>, ValueTree>(
        each);
  }
  template <class... T, class Each>
  void typed(Each each) {
    (each([&](const ValueReader& value) {
       (void)Codec<T>::decode(value);
       ++decoded;
     }),
     ...);
  }

  const Wrong wrong_;
};

}  // namespace weft::rpc::probe
