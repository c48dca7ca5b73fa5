// Sends JSON in a message, and prints the values of received messages as JSON.
#pragma once

#include <weft/rpc/wire/value.h>

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/errors.h"
#include "tests/support/messages.h"
#include "tools/weft/json_value.h"

namespace weft::tool {

inline constexpr std::size_t all = std::numeric_limits<std::size_t>::max();

inline std::shared_ptr<rpc::IncomingMessage> sent(const Type& type, const std::string& json) {
  const PlainValue value = value_of_json(type, parse_json(json));
  return test::with_argument([&](rpc::ValueWriter writer) { write(writer, value); });
}

// Returns the value of a parameter of that type for some JSON, as weft::rpc::render shows it.
inline std::string wire(const std::string& type, const std::string& json) {
  const auto parsed = ParsedType::parse(type);
  return rpc::render(sent(*parsed, json)->argument(0));
}
// Returns the error if the JSON is refused.
inline std::string refusal(const std::string& type, const std::string& json) {
  const auto error = test::error_of([&] { return wire(type, json); });
  if (!error) return "(no error)";
  EXPECT_EQ(error->kind(), rpc::ErrorKind::invalid_argument);
  return error->what();
}
// Returns the JSON that is printed for that value.
inline std::string again(const std::string& type, const std::string& json, std::size_t most = all) {
  const auto parsed = ParsedType::parse(type);
  const auto message = sent(*parsed, json);
  return on_one_line(json_of_value(message->argument(0), &*parsed, most));
}

// Returns a printed C++ value.
template <class T>
std::string printed(const T& value, bool typed = true, std::size_t most = all) {
  const auto type = ParsedType::parse(rpc::type_text<T>());
  const auto message =
      test::with_argument([&](rpc::ValueWriter writer) { rpc::Codec<T>::encode(writer, value); });
  return on_one_line(json_of_value(message->argument(0), typed ? &*type : nullptr, most));
}
// Returns the JSON for a value that `encode` writes, with the given type or "".
template <class Encode>
std::string printed_of(Encode encode, const std::string& type = {}, std::size_t most = all) {
  const auto message = test::with_argument(encode);
  if (type.empty()) return on_one_line(json_of_value(message->argument(0), nullptr, most));
  const auto parsed = ParsedType::parse(type);
  return on_one_line(json_of_value(message->argument(0), &*parsed, most));
}

}  // namespace weft::tool
