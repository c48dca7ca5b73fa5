#include "tools/weft/plain_value.h"

#include <weft/rpc/codec/codec.h>

namespace weft::tool {
namespace {

struct Write {
  rpc::ValueWriter writer;

  void operator()(std::monostate) { writer.set_nil(); }
  void operator()(bool value) { writer.set_bool(value); }
  void operator()(std::int64_t value) { writer.set_int(value); }
  void operator()(std::uint64_t value) { writer.set_uint(value); }
  void operator()(double value) { writer.set_real(value); }
  void operator()(const std::string& value) { writer.set_text(value); }
  void operator()(const PlainBytes& value) { rpc::Codec<rpc::Buffer>::encode(writer, value.bytes); }
  void operator()(const std::vector<std::int64_t>& values) { writer.set_ints(values); }
  void operator()(const std::vector<double>& values) { writer.set_reals(values); }
  void operator()(const std::vector<float>& values) { writer.set_floats(values); }
  void operator()(const PlainList& list) {
    rpc::ListWriter elements = writer.set_list(list.elements.size());
    for (std::size_t i = 0; i < list.elements.size(); ++i) write(elements[i], list.elements[i]);
  }
  void operator()(const PlainRecord& record) {
    rpc::RecordWriter fields = writer.set_record(record.fields.size());
    for (std::size_t i = 0; i < record.fields.size(); ++i)
      write(fields.field(i, record.fields[i].first), record.fields[i].second);
  }
  void operator()(const PlainMap& map) {
    rpc::MapWriter entries = writer.set_map(map.entries.size());
    for (std::size_t i = 0; i < map.entries.size(); ++i) {
      write(entries.key(i), map.entries[i].first);
      write(entries.value(i), map.entries[i].second);
    }
  }
  void operator()(const PlainVariant& variant) {
    write(writer.set_variant(variant.index), variant.value.front());
  }
};

}  // namespace

void write(rpc::ValueWriter writer, const PlainValue& value) { std::visit(Write{writer}, value.held); }

}  // namespace weft::tool
