// Parses JSON that a user wrote, with helpful errors, and prints JSON for people or for programs.
// Thread-safety: functions without state.
#pragma once

#include <weft/rpc/codec/struct_codec.h>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace weft::tool {

using GivenJson = nlohmann::json;            // JSON that was parsed
using PrintedJson = nlohmann::ordered_json;  // JSON to print: fields keep their order

// Parses a text. Throws Error(invalid_argument) if the text is not JSON, has a key of an object twice, or
// nests too deeply.
GivenJson parse_json(std::string_view text);

// Adds a field to an object. Use it instead of ordered_json's own insertion, which searches all existing
// fields.
void add_field(PrintedJson& object, std::string name, PrintedJson value);

// A struct with a codec as an object.
template <class T>
PrintedJson json_of_fields(const T& value) {
  PrintedJson json;
  rpc::for_each_field(
      value, [&](std::string_view name, const auto& field) { add_field(json, std::string(name), field); });
  return json;
}

// Prints JSON on one line. Bytes that are not UTF-8 are replaced, and control characters are escaped.
std::string on_one_line(const PrintedJson& json);
std::string on_one_line(const GivenJson& json);

// The beginning of the value or text, for errors, because it may be huge.
std::string excerpt(const GivenJson& json);
std::string excerpt(std::string text);

// Prints JSON on several lines. A value that fits into `width` columns is on one line. A longer list of
// numbers has several numbers on each line.
std::string on_lines(const PrintedJson& json, std::size_t width);

// A text of a peer, for the terminal: control characters are escaped, except the end of a line.
std::string printable(std::string_view text);

}  // namespace weft::tool
