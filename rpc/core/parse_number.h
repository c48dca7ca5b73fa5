// parse_number(): a decimal number that is the whole text.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace weft::rpc {

// nullopt: the text is not a number, or T cannot represent it.
template <class T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc{} && end == last ? std::optional(number) : std::nullopt;
}

}  // namespace weft::rpc
