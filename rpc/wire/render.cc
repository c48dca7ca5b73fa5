#include <weft/rpc/wire/render.h>

#include <weft/rpc/wire/checksum.h>

#include <charconv>

namespace weft::rpc {
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
