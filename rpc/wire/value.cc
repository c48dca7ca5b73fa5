#include <weft/rpc/wire/value.h>

#include <weft/rpc/wire/checksum.h>
#include <weft/rpc/wire/internal/capnp_access.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace weft::rpc {
namespace {

using detail::checked;
using detail::ValueAccess;
using Lists = capnp::List<schema::Value>;
using Fields = capnp::List<schema::Field>;
using Entries = capnp::List<schema::Entry>;
using Ints = capnp::List<std::int64_t>;
using Reals = capnp::List<double>;
using Floats = capnp::List<float>;

std::string_view view(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

// The size of a sequence in Cap'n Proto's type; throws if it is too large.
unsigned count(std::size_t size) {
  if (size > (1U << 29) - 1)
    throw Error(ErrorKind::resource_exhausted,
                "a sequence of " + std::to_string(size) +
                    " values is too long for a message: send a tensor or bytes");
  return static_cast<unsigned>(size);
}

[[noreturn]] void out_of_range(std::size_t i, std::size_t size) {
  throw Error(ErrorKind::protocol_error,
              "index " + std::to_string(i) + " in a value of " + std::to_string(size) + " elements");
}

template <class List>
auto element(const List& list, std::size_t i) {
  if (i >= list.size()) out_of_range(i, list.size());
  return list[static_cast<unsigned>(i)];
}

// The elements of a value whose kind has been checked.
template <class List, auto get>
const typename List::Reader& numbers_of(const ValueReader& value) {
  return ValueAccess::elements<List>(value, [&] { return (ValueAccess::reader(value).*get)(); });
}
template <class List, auto get>
const typename List::Reader& structs_of(const ValueReader& value) {
  return ValueAccess::elements<List>(value, [&] {
    return ValueAccess::message(value).content().sized((ValueAccess::reader(value).*get)());
  });
}
constexpr auto values_of = structs_of<Lists, &schema::Value::Reader::getList>;
constexpr auto fields_of = structs_of<Fields, &schema::Value::Reader::getRecord>;
constexpr auto entries_of = structs_of<Entries, &schema::Value::Reader::getMap>;
constexpr auto ints_of = numbers_of<Ints, &schema::Value::Reader::getInts>;
constexpr auto reals_of = numbers_of<Reals, &schema::Value::Reader::getReals>;
constexpr auto floats_of = numbers_of<Floats, &schema::Value::Reader::getFloats>;

template <class List, class Number>
void set_numbers(List list, std::span<const Number> values) {
  for (unsigned i = 0; i < list.size(); ++i) list.set(i, values[i]);
}

// In the order of ValueKind.
constexpr std::string_view value_names[] = {"nil",    "boolean", "int",    "uint",  "real",    "text",
                                            "bytes",  "list",    "record", "map",   "variant", "attachment",
                                            "object", "ints",    "reals",  "floats"};
static_assert(std::size(value_names) == static_cast<std::size_t>(ValueKind::floats) + 1);

}  // namespace

std::string_view to_string(ValueKind kind) {
  const auto number = static_cast<std::size_t>(kind);
  return number < std::size(value_names) ? value_names[number] : "unknown";
}

void ValueWriter::set_nil() { ValueAccess::builder(*this).setNil(); }
void ValueWriter::set_bool(bool value) { ValueAccess::builder(*this).setBoolean(value); }
void ValueWriter::set_int(std::int64_t value) { ValueAccess::builder(*this).setInt(value); }
void ValueWriter::set_uint(std::uint64_t value) { ValueAccess::builder(*this).setUint(value); }
void ValueWriter::set_real(double value) { ValueAccess::builder(*this).setReal(value); }
void ValueWriter::set_text(std::string_view value) {
  auto text = ValueAccess::builder(*this).initText(count(value.size()));
  std::copy(value.begin(), value.end(), text.begin());
}
void ValueWriter::set_bytes(std::span<const std::byte> value) {
  auto data = ValueAccess::builder(*this).initBytes(count(value.size()));
  std::copy_n(reinterpret_cast<const kj::byte*>(value.data()), value.size(), data.begin());
}
void ValueWriter::set_ints(std::span<const std::int64_t> values) {
  set_numbers(ValueAccess::builder(*this).initInts(count(values.size())), values);
}
void ValueWriter::set_reals(std::span<const double> values) {
  set_numbers(ValueAccess::builder(*this).initReals(count(values.size())), values);
}
void ValueWriter::set_floats(std::span<const float> values) {
  set_numbers(ValueAccess::builder(*this).initFloats(count(values.size())), values);
}
void ValueWriter::set_attachment(Buffer bytes) {
  ValueAccess::builder(*this).setAttachment(message().attach(std::move(bytes)));
}
ListWriter ValueWriter::set_list(std::size_t size) {
  return ValueAccess::writer<ListWriter>(ValueAccess::builder(*this).initList(count(size)), message());
}
RecordWriter ValueWriter::set_record(std::size_t fields) {
  return ValueAccess::writer<RecordWriter>(ValueAccess::builder(*this).initRecord(count(fields)), message());
}
MapWriter ValueWriter::set_map(std::size_t size) {
  return ValueAccess::writer<MapWriter>(ValueAccess::builder(*this).initMap(count(size)), message());
}
ValueWriter ValueWriter::set_variant(std::size_t index) {
  auto variant = ValueAccess::builder(*this).initVariant();
  variant.setIndex(static_cast<std::uint16_t>(index));
  return ValueAccess::writer(variant.initValue(), message());
}

ValueWriter ListWriter::operator[](std::size_t i) {
  return ValueAccess::writer(ValueAccess::builder<Lists::Builder>(*this)[static_cast<unsigned>(i)],
                             message());
}
ValueWriter RecordWriter::field(std::size_t i, std::string_view name) {
  auto field = ValueAccess::builder<Fields::Builder>(*this)[static_cast<unsigned>(i)];
  field.setName(kj::StringPtr(std::string(name).c_str(), name.size()));
  return ValueAccess::writer(field.initValue(), message());
}
ValueWriter MapWriter::key(std::size_t i) {
  auto entry = ValueAccess::builder<Entries::Builder>(*this)[static_cast<unsigned>(i)];
  return ValueAccess::writer(entry.initKey(), message());
}
ValueWriter MapWriter::value(std::size_t i) {
  auto entry = ValueAccess::builder<Entries::Builder>(*this)[static_cast<unsigned>(i)];
  return ValueAccess::writer(entry.initValue(), message());
}

ValueKind ValueReader::kind() const {
  const auto which = static_cast<unsigned>(ValueAccess::reader(*this).which());
  if (which > static_cast<unsigned>(ValueKind::floats))
    throw Error(ErrorKind::unsupported,
                "a value of kind " + std::to_string(which) + ", which this version does not know");
  return static_cast<ValueKind>(which);
}

void ValueReader::mismatch(std::string_view expected) const {
  throw Error(ErrorKind::type_mismatch,
              "expected " + std::string(expected) + ", found " + std::string(to_string(kind())));
}

std::uint64_t ValueReader::object_type() const {
  if (kind() != ValueKind::object) return 0;
  return checked([&] { return ValueAccess::reader(*this).getObject().getType(); });
}
bool ValueReader::get_bool() const {
  if (kind() != ValueKind::boolean) mismatch("bool");
  return ValueAccess::reader(*this).getBoolean();
}
std::int64_t ValueReader::get_int() const {
  const auto& value = ValueAccess::reader(*this);
  if (kind() == ValueKind::int_) return value.getInt();
  if (kind() != ValueKind::uint) mismatch("an integer");
  if (value.getUint() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    throw Error(ErrorKind::type_mismatch,
                "expected i64, found an integer out of range: " + std::to_string(value.getUint()));
  return static_cast<std::int64_t>(value.getUint());
}
std::uint64_t ValueReader::get_uint() const {
  const auto& value = ValueAccess::reader(*this);
  if (kind() == ValueKind::uint) return value.getUint();
  if (kind() != ValueKind::int_) mismatch("an integer");
  if (value.getInt() < 0)
    throw Error(ErrorKind::type_mismatch,
                "expected u64, found a negative integer: " + std::to_string(value.getInt()));
  return static_cast<std::uint64_t>(value.getInt());
}
double ValueReader::get_real() const {
  if (kind() != ValueKind::real) mismatch("a floating-point number");
  return ValueAccess::reader(*this).getReal();
}
std::string_view ValueReader::get_text() const {
  if (kind() != ValueKind::text) mismatch("text");
  return checked([&] { return view(ValueAccess::reader(*this).getText()); });
}
std::span<const std::byte> ValueReader::get_bytes() const {
  if (kind() != ValueKind::bytes) mismatch("bytes");
  return checked([&]() -> std::span<const std::byte> {
    const auto data = ValueAccess::reader(*this).getBytes();
    return {reinterpret_cast<const std::byte*>(data.begin()), data.size()};
  });
}
Buffer ValueReader::get_attachment() const {
  if (kind() != ValueKind::attachment) mismatch("an attachment");
  return message_->attachment(ValueAccess::reader(*this).getAttachment());
}

std::size_t ValueReader::size() const {
  return checked([&]() -> std::size_t {
    switch (kind()) {
      case ValueKind::list:
        return values_of(*this).size();
      case ValueKind::record:
        return fields_of(*this).size();
      case ValueKind::map:
        return entries_of(*this).size();
      case ValueKind::ints:
        return ints_of(*this).size();
      case ValueKind::reals:
        return reals_of(*this).size();
      case ValueKind::floats:
        return floats_of(*this).size();
      default:
        mismatch("a sequence");
    }
  });
}
ValueReader ValueReader::at(std::size_t i) const {
  if (kind() != ValueKind::list) mismatch("a list");
  return checked([&] { return ValueAccess::reader(element(values_of(*this), i), *message_); });
}
std::int64_t ValueReader::int_at(std::size_t i) const {
  if (kind() == ValueKind::list) return at(i).get_int();
  if (kind() != ValueKind::ints) mismatch("a sequence of integers");
  return checked([&] { return element(ints_of(*this), i); });
}
double ValueReader::real_at(std::size_t i) const {
  if (kind() == ValueKind::list) return at(i).get_real();
  if (kind() == ValueKind::floats)
    return checked([&] { return static_cast<double>(element(floats_of(*this), i)); });
  if (kind() != ValueKind::reals) mismatch("a sequence of floating-point numbers");
  return checked([&] { return element(reals_of(*this), i); });
}
bool ValueReader::find_field(std::string_view name, std::size_t guess, ValueReader& out) const {
  if (kind() != ValueKind::record) mismatch("a record");
  return checked([&] {
    const auto& fields = fields_of(*this);
    const auto take = [&](unsigned i) {
      if (view(fields[i].getName()) != name) return false;
      out = ValueAccess::reader(fields[i].getValue(), *message_);
      return true;
    };
    if (guess < fields.size() && take(static_cast<unsigned>(guess))) return true;
    for (unsigned i = 0; i < fields.size(); ++i)
      if (take(i)) return true;
    return false;
  });
}
std::string_view ValueReader::field_name(std::size_t i) const {
  if (kind() != ValueKind::record) mismatch("a record");
  return checked([&] { return view(element(fields_of(*this), i).getName()); });
}
ValueReader ValueReader::field_at(std::size_t i) const {
  if (kind() != ValueKind::record) mismatch("a record");
  return checked([&] { return ValueAccess::reader(element(fields_of(*this), i).getValue(), *message_); });
}
ValueReader ValueReader::map_key(std::size_t i) const {
  if (kind() != ValueKind::map) mismatch("a map");
  return checked([&] { return ValueAccess::reader(element(entries_of(*this), i).getKey(), *message_); });
}
ValueReader ValueReader::map_value(std::size_t i) const {
  if (kind() != ValueKind::map) mismatch("a map");
  return checked([&] { return ValueAccess::reader(element(entries_of(*this), i).getValue(), *message_); });
}
std::size_t ValueReader::variant_index() const {
  if (kind() != ValueKind::variant) mismatch("a variant");
  return checked([&] { return ValueAccess::reader(*this).getVariant().getIndex(); });
}
ValueReader ValueReader::variant_value() const {
  if (kind() != ValueKind::variant) mismatch("a variant");
  return checked(
      [&] { return ValueAccess::reader(ValueAccess::reader(*this).getVariant().getValue(), *message_); });
}

namespace {

void append_real(std::string& out, double value) {
  char text[32];
  const auto end =
      std::to_chars(text, text + sizeof text, value).ptr;  // the shortest text that reads back the same
  out.append(text, end);
}

void append_bytes(std::string& out, std::string_view what, std::span<const std::byte> bytes) {
  out += what;
  out += '(' + std::to_string(bytes.size()) + ':' + std::to_string(crc32c(bytes)) + ')';
}

void append(std::string& out, const ValueReader& value) {
  const auto sequence = [&](char open, char close, auto&& element) {
    out += open;
    for (std::size_t i = 0, n = value.size(); i < n; ++i) {
      if (i != 0) out += ',';
      element(i);
    }
    out += close;
  };
  switch (value.kind()) {
    case ValueKind::nil:
      out += "nil";
      return;
    case ValueKind::boolean:
      out += value.get_bool() ? "true" : "false";
      return;
    case ValueKind::int_:
      out += std::to_string(value.get_int());
      return;
    case ValueKind::uint:
      out += std::to_string(value.get_uint());
      return;
    case ValueKind::real:
      return append_real(out, value.get_real());
    case ValueKind::text:
      out += std::to_string(value.get_text().size()) + '"';
      out += value.get_text();
      out += '"';
      return;
    case ValueKind::bytes:
      return append_bytes(out, "bytes", value.get_bytes());
    case ValueKind::attachment:
      return append_bytes(out, "bytes", value.get_attachment().bytes());
    case ValueKind::list:
      return sequence('[', ']', [&](std::size_t i) { append(out, value.at(i)); });
    case ValueKind::ints:
      return sequence('[', ']', [&](std::size_t i) { out += std::to_string(value.int_at(i)); });
    case ValueKind::reals:
    case ValueKind::floats:
      return sequence('[', ']', [&](std::size_t i) { append_real(out, value.real_at(i)); });
    case ValueKind::record:
      return sequence('{', '}', [&](std::size_t i) {
        out += value.field_name(i);
        out += ':';
        append(out, value.field_at(i));
      });
    case ValueKind::map:
      return sequence('{', '}', [&](std::size_t i) {
        append(out, value.map_key(i));
        out += ':';
        append(out, value.map_value(i));
      });
    case ValueKind::variant:
      out += '<' + std::to_string(value.variant_index()) + ':';
      append(out, value.variant_value());
      out += '>';
      return;
    case ValueKind::object:
      out += "object(" + std::to_string(value.object_type()) + ')';
      return;
  }
}

}  // namespace

std::string render(const ValueReader& value) {
  std::string out;
  append(out, value);
  return out;
}

}  // namespace weft::rpc
