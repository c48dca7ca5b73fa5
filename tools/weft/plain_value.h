// PlainValue: a value of the wire as plain data, made before there is a message to write it into: so a call
// can be checked first, and made several times. Thread-safety: a value.
#pragma once

#include <weft/rpc/wire/value.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace weft::tool {

struct PlainValue;

struct PlainBytes {
  rpc::Buffer bytes;  // separate from the header if they are many
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
  std::vector<PlainValue> value;  // one
};

struct PlainValue {
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, PlainBytes,
               std::vector<std::int64_t>, std::vector<double>, std::vector<float>, PlainList, PlainRecord,
               PlainMap, PlainVariant>
      held;  // nothing: nil
};

void write(rpc::ValueWriter writer, const PlainValue& value);

}  // namespace weft::tool
