// JSON as text: what a user gives, with helpful errors, and what is printed, for people or for programs.
// Thread-safety: none needed.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace weft::tool {

using GivenJson = nlohmann::json;            // what was read
using PrintedJson = nlohmann::ordered_json;  // what will be printed: fields stay in their order

// Throws Error(invalid_argument): where it is no JSON, names a key of an object twice, or nests too deeply.
GivenJson parse_json(std::string_view text);

// Objects are filled by this: ordered_json's own insertion looks through all that is there.
void add_field(PrintedJson& object, std::string name, PrintedJson value);

// On one line. Bytes that are no UTF-8 are replaced, control characters are escaped.
std::string on_one_line(const PrintedJson& json);
std::string on_one_line(const GivenJson& json);

// The beginning of it, for errors: the value, or the text, may be huge.
std::string excerpt(const GivenJson& json);
std::string excerpt(std::string text);

// What fits into a line of `width` is on one line; numbers that do not are several to a line.
std::string on_lines(const PrintedJson& json, std::size_t width);

// A text that a peer sent, for the terminal: control characters except the end of a line are escaped.
std::string printable(std::string_view text);

}  // namespace weft::tool
