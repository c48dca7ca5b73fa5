// ValueWriter and ValueReader: one self-describing value of a message, which Codec<T> writes and reads.
//
// Both are small handles into their message and are valid as long as it exists; a writer sets its value once.
// They hide Cap'n Proto: its generated code requires the exact library version, so it is not in public
// headers. Readers throw type_mismatch ("expected bool, found text"), or protocol_error if the message is
// malformed. Thread-safety: as the message, one thread at a time.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft::rpc {

class OutgoingMessage;
class IncomingMessage;
class ListWriter;
class RecordWriter;
class MapWriter;

// The kinds of values. The last three are packed lists of numbers.
enum class ValueKind : std::uint8_t {
  nil,
  boolean,
  int_,
  uint,
  real,
  text,
  bytes,
  list,
  record,
  map,
  variant,
  attachment,
  object,
  ints,
  reals,
  floats,
};
// The name of the kind, for errors.
WEFT_EXPORT std::string_view to_string(ValueKind kind);

namespace detail {

struct ValueAccess;  // access for the source file

inline constexpr std::size_t builder_size = 48, reader_size = 56;  // room for a Cap'n Proto struct handle

// The state of all writers: Cap'n Proto's builder of the part that they write.
class WEFT_EXPORT Writer {
 public:
  OutgoingMessage& message() const { return *message_; }  // the message of the value

 protected:
  Writer() = default;

 private:
  friend struct ValueAccess;
  alignas(8) std::byte builder_[builder_size];
  OutgoingMessage* message_ = nullptr;
};

}  // namespace detail

class WEFT_EXPORT ValueWriter : public detail::Writer {
 public:
  // Sets the value; call once. Texts and bytes are copied into the header.
  void set_nil();
  void set_bool(bool value);
  void set_int(std::int64_t value);
  void set_uint(std::uint64_t value);
  void set_real(double value);
  void set_text(std::string_view value);
  void set_bytes(std::span<const std::byte> value);
  void set_ints(std::span<const std::int64_t> values);
  void set_reals(std::span<const double> values);
  void set_floats(std::span<const float> values);
  void set_attachment(Buffer bytes);  // not part of the header; borrowed until the message has been sent
  // Sets a value with several parts. The caller then sets the parts through the returned writer. The size is
  // fixed.
  ListWriter set_list(std::size_t size);
  RecordWriter set_record(std::size_t fields);
  MapWriter set_map(std::size_t size);
  ValueWriter set_variant(std::size_t index);

 private:
  friend struct detail::ValueAccess;
  ValueWriter() = default;
};

// The items of a list.
class WEFT_EXPORT ListWriter : public detail::Writer {
 public:
  ValueWriter operator[](std::size_t i);
};

// The fields of a record, in any order.
class WEFT_EXPORT RecordWriter : public detail::Writer {
 public:
  ValueWriter field(std::size_t i, std::string_view name);  // also sets the field's name
};

// The entries of a map, by position.
class WEFT_EXPORT MapWriter : public detail::Writer {
 public:
  // The key and the value of entry i.
  ValueWriter key(std::size_t i);
  ValueWriter value(std::size_t i);
};

class WEFT_EXPORT ValueReader {
 public:
  IncomingMessage& message() const { return *message_; }  // the message of the value

  // The kind of the value; the getters throw type_mismatch for another kind.
  ValueKind kind() const;
  bool is_nil() const { return kind() == ValueKind::nil; }
  std::uint64_t object_type() const;  // the schema id if kind() is object, otherwise 0

  // The value. Texts and bytes refer to the message.
  bool get_bool() const;
  std::int64_t get_int() const;    // also accepts an unsigned value that fits
  std::uint64_t get_uint() const;  // also accepts a signed value that fits
  double get_real() const;
  std::string_view get_text() const;
  std::span<const std::byte> get_bytes() const;
  Buffer get_attachment() const;

  std::size_t size() const;                  // the size of a list, record, map or packed list
  ValueReader at(std::size_t i) const;       // of a list
  std::int64_t int_at(std::size_t i) const;  // of a list or packed integers
  double real_at(std::size_t i) const;       // of a list, packed reals or floats
  bool find_field(std::string_view name, std::size_t guess,
                  ValueReader& out) const;  // guess: the probable index
  // Parts by index. Throw type_mismatch for another kind of value, protocol_error beyond the end.
  std::string_view field_name(std::size_t i) const;
  ValueReader field_at(std::size_t i) const;
  ValueReader map_key(std::size_t i) const;
  ValueReader map_value(std::size_t i) const;
  std::size_t variant_index() const;
  ValueReader variant_value() const;

  ValueReader() = default;  // refers to no value: assign a reader first

  // Throws the error of all readers for a value of another kind than expected.
  [[noreturn]] void mismatch(std::string_view expected) const;

 private:
  friend struct detail::ValueAccess;
  alignas(8) std::byte reader_[detail::reader_size]{};
  IncomingMessage* message_ = nullptr;
  alignas(8) mutable std::byte elements_[detail::reader_size]{};  // the elements of a sequence, once opened
  mutable bool opened_ = false;
};

// Returns the value as canonical text. Equal values have equal texts. The text of an attachment is its size
// and checksum. The text is used to compare the arguments of two calls, and in messages for users. Throws the
// errors of ValueReader.
WEFT_EXPORT std::string render(const ValueReader& value);

}  // namespace weft::rpc
