// PlainValue: a value of the wire as plain data. It exists before the message into which it is written, so
// the program can check the arguments of a call first, and make the call several times. Thread-safety: a
// value.
#pragma once

#include <weft/rpc/wire/value.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace weft::tool {

struct PlainValue;

struct PlainBytes {
  rpc::Buffer bytes;  // an attachment if there are many
};
struct PlainList {
  std::vector<PlainValue> elements;
};
struct PlainRecord {
  std::vector<std::pair<std::string, PlainValue>> fields;
};
struct PlainMap {
  std::vector<std::pair<PlainValue, PlainValue>> entries;
};
struct PlainVariant {
  std::size_t index = 0;
  std::vector<PlainValue> value;  // exactly one
};

struct PlainValue {
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, PlainBytes,
               std::vector<std::int64_t>, std::vector<double>, std::vector<float>, PlainList, PlainRecord,
               PlainMap, PlainVariant>
      held;  // std::monostate: nil
};

void write(rpc::ValueWriter writer, const PlainValue& value);

}  // namespace weft::tool
