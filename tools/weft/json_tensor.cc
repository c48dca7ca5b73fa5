#include "tools/weft/json_tensor.h"

#include <weft/rpc/core/error.h>
#include <weft/rpc/job/store/base64.h>

#include <algorithm>
#include <limits>

#include "tools/weft/dtype.h"

namespace weft::tool {
namespace {

using rpc::Error;
using rpc::ErrorKind;
using rpc::ValueKind;
using Sizes = std::vector<std::int64_t>;

constexpr std::size_t max_dimensions = 64;
constexpr std::size_t max_nested = 8;  // dimensions that are printed as lists within lists

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::invalid_argument, what); }

std::string text(const Sizes& sizes) { return on_one_line(PrintedJson(sizes)); }

// The number of elements of a tensor of this shape. nullopt: a size is negative, or the number of bytes
// overflows.
std::optional<std::size_t> count(const Sizes& shape, std::size_t item) {
  std::uint64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    // A size of zero counts as 1 here, so that it does not hide an overflow of the other sizes.
    std::uint64_t next = 0;
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)),
                               &next) ||
        next > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / item)
      return std::nullopt;
    elements = next;
  }
  return std::find(shape.begin(), shape.end(), 0) == shape.end() ? static_cast<std::size_t>(elements) : 0;
}

// --- Given ---

const Dtype& dtype_named(const std::string& name) {
  const Dtype* found = Dtype::find(name);
  if (found == nullptr) refuse("unknown dtype " + excerpt(GivenJson(name)));
  return *found;
}

// Computes the shape of nested lists. All lists of one level must have the same length.
void measure(const GivenJson& data, std::size_t level, Sizes& shape) {
  if (!data.is_array()) {
    if (level != shape.size()) refuse("lists of different depth, expected a tensor");
    return;
  }
  const auto size = static_cast<std::int64_t>(data.size());
  if (level == shape.size()) refuse("lists of different depth, expected a tensor");
  if (shape[level] != size)
    refuse("lists of " + std::to_string(shape[level]) + " and of " + std::to_string(size) +
           " elements, expected equal lengths");
  for (const GivenJson& one : data) measure(one, level + 1, shape);
}
Sizes shape_of(const GivenJson& data) {
  Sizes shape;
  for (const GivenJson* inner = &data; inner->is_array(); inner = &inner->front()) {
    if (shape.size() == max_dimensions) refuse("a tensor of more than 64 dimensions");
    shape.push_back(static_cast<std::int64_t>(inner->size()));
    if (inner->empty()) break;
  }
  measure(data, 0, shape);
  return shape;
}

template <class F>
void each_number(const GivenJson& data, F&& f) {
  if (!data.is_array()) return f(data);
  for (const GivenJson& one : data) each_number(one, f);
}

const Dtype& dtype_of(const GivenJson& data) {
  bool any = false, all_booleans = true, all_integers = true;
  each_number(data, [&](const GivenJson& number) {
    any = true;
    all_booleans = all_booleans && number.is_boolean();
    all_integers = all_integers && number.is_number_integer();
  });
  return dtype_named(any && all_booleans ? "bool" : any && all_integers ? "int64" : "float32");
}

Sizes sizes_from(const GivenJson& json, const char* what) {
  if (!json.is_array()) refuse(std::string("expected a list of integers as ") + what);
  if (json.size() > max_dimensions) refuse("a tensor of more than 64 dimensions");
  Sizes sizes;
  for (const GivenJson& size : json)
    sizes.push_back(integer_of(size, 0, std::numeric_limits<std::int64_t>::max(), what));
  return sizes;
}

PlainValue elements_from(const GivenJson& data, const Dtype& dtype, std::size_t elements,
                         const Sizes& shape) {
  const std::size_t numbers = elements * (dtype.bytes() / dtype.number_bytes());
  if (data.is_object()) {
    if (data.size() != 1 || !data.contains("base64") || !data["base64"].is_string())
      refuse("expected lists, or {\"base64\": …} as data");
    const auto bytes = rpc::detail::from_base64(data["base64"].get_ref<const std::string&>());
    if (!bytes) refuse("malformed base64");
    if (bytes->size() != elements * dtype.bytes())
      refuse("a " + std::string(dtype.name()) + " tensor of shape " + text(shape) + " has " +
             std::to_string(elements * dtype.bytes()) + " bytes, not " + std::to_string(bytes->size()));
    return {PlainBytes{rpc::Buffer::copy(*bytes)}};
  }
  std::size_t given = 0;
  each_number(data, [&](const GivenJson&) { ++given; });
  if (given != numbers)
    refuse("a tensor of shape " + text(shape) + " has " + std::to_string(numbers) +
           (dtype.is_complex() ? " numbers (two an element)" : " elements") + ", not " +
           std::to_string(given));
  rpc::Buffer buffer = rpc::Buffer::allocate(elements * dtype.bytes());
  std::byte* to = buffer.data();
  each_number(data, [&](const GivenJson& number) {
    dtype.write(to, number);
    to += dtype.number_bytes();
  });
  return {PlainBytes{std::move(buffer)}};
}

PlainValue text_value(std::string_view text) { return {std::string(text)}; }

const GivenJson& field(const GivenJson& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) refuse(std::string("a tensor without ") + name);
  return *found;
}

PlainValue sparse_from_json(const GivenJson& json, const Dtype& dtype) {
  const GivenJson& layout = field(json, "layout");
  PlainRecord record;
  record.fields.emplace_back("dtype", text_value(dtype.name()));
  record.fields.emplace_back("shape", PlainValue{sizes_from(field(json, "shape"), "shape")});
  const auto add = [&](const char* name) {
    record.fields.emplace_back(name, tensor_from_json(field(json, name)));
  };
  if (layout == "coo") {
    record.fields.emplace_back("layout", text_value("coo"));
    add("indices");
    add("values");
    const auto coalesced = json.find("coalesced");
    record.fields.emplace_back("coalesced", PlainValue{coalesced != json.end() && *coalesced == true});
  } else if (layout == "csr") {
    record.fields.emplace_back("layout", text_value("csr"));
    add("crow");
    add("columns");
    add("values");
  } else {
    refuse("expected \"coo\" or \"csr\" as layout, found " + excerpt(layout));
  }
  return {std::move(record)};
}

// --- Received ---

std::optional<Sizes> read_sizes(const rpc::ValueReader& value, std::size_t most) {
  if (value.kind() != ValueKind::ints && value.kind() != ValueKind::list) return std::nullopt;
  if (value.size() > most) return std::nullopt;
  Sizes sizes(value.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = value.int_at(i);
  return sizes;
}

// The elements from `at` on, as nested lists.
PrintedJson nested(const Dtype& dtype, const std::byte*& at, const Sizes& shape, std::size_t level) {
  if (level == shape.size()) {
    PrintedJson element = dtype.read(at);
    at += dtype.bytes();
    return element;
  }
  PrintedJson list = PrintedJson::array();
  for (std::int64_t i = 0; i < shape[level]; ++i) list.push_back(nested(dtype, at, shape, level + 1));
  return list;
}

std::optional<PrintedJson> sparse_to_json(const rpc::ValueReader& value, std::string_view layout,
                                          PrintedJson json, std::size_t most, std::uint64_t& budget) {
  add_field(json, "layout", layout);
  using Names = std::vector<const char*>;
  for (const char* name : layout == "coo" ? Names{"indices", "values"} : Names{"crow", "columns", "values"}) {
    rpc::ValueReader part, inner;
    if (!value.find_field(name, 3, part) || part.kind() != ValueKind::record ||
        part.find_field("layout", 2, inner))
      return std::nullopt;
    auto printed = tensor_to_json(part, most, budget);
    if (!printed) return std::nullopt;
    add_field(json, name, std::move(*printed));
  }
  rpc::ValueReader coalesced;
  if (value.find_field("coalesced", 5, coalesced) && coalesced.kind() == ValueKind::boolean)
    add_field(json, "coalesced", coalesced.get_bool());
  return json;
}

}  // namespace

void spend(std::uint64_t& budget, std::uint64_t bytes) {
  if (bytes > budget)
    throw Error(ErrorKind::protocol_error, "a message that refers to its attachments too many times");
  budget -= bytes;
}

PlainValue tensor_from_json(const GivenJson& json) {
  if (json.is_null()) return {};
  const bool bare = !json.is_object();
  if (bare && !json.is_array() && !json.is_number() && !json.is_boolean())
    refuse("expected a tensor: lists of numbers, or {\"dtype\": …, \"shape\": …, \"data\": …}, found " +
           excerpt(json));
  if (!bare) {
    if (json.contains("elided"))
      refuse("some elements of this tensor were elided, expected all: print it with --max 0");
    for (const auto& [name, value] : json.items())
      if (name != "dtype" && name != "shape" && name != "data" && name != "expanded" && name != "layout" &&
          name != "indices" && name != "values" && name != "coalesced" && name != "crow" && name != "columns")
        refuse("a tensor has no " + excerpt(GivenJson(name)) +
               ": it is {\"dtype\": …, \"shape\": …, \"data\": …}");
  }
  const auto named = bare ? json.end() : json.find("dtype");
  if (!bare && named != json.end() && !named->is_string()) refuse("expected a text as dtype");
  const auto dtype = [&](const GivenJson& data) -> const Dtype& {
    return bare || named == json.end() ? dtype_of(data) : dtype_named(named->get<std::string>());
  };
  if (!bare && json.contains("layout")) return sparse_from_json(json, dtype(field(json, "dtype")));

  const GivenJson& data = bare ? json : field(json, "data");
  const Dtype& type = dtype(data);
  Sizes shape;
  if (!bare && json.contains("shape")) {
    shape = sizes_from(json["shape"], "shape");
  } else {
    if (data.is_object()) refuse("a tensor of bytes without shape");
    shape = shape_of(data);
    if (type.is_complex()) {
      if (shape.empty() || shape.back() != 2) refuse("an element of a complex tensor is [re, im]");
      shape.pop_back();
    }
  }
  Sizes stored = shape, expanded;
  if (!bare && json.contains("expanded")) {
    expanded = sizes_from(json["expanded"], "expanded");
    for (const std::int64_t d : expanded) {
      if (d >= static_cast<std::int64_t>(shape.size()))
        refuse("expanded along a dimension that does not exist");
      auto& size = stored[static_cast<std::size_t>(d)];
      size = std::min<std::int64_t>(size, 1);
    }
  }
  const auto elements = count(stored, type.bytes());
  if (!elements || !count(shape, type.bytes())) refuse("a tensor of shape " + text(shape) + " is too large");
  PlainRecord record;
  record.fields.emplace_back("dtype", text_value(type.name()));
  record.fields.emplace_back("shape", PlainValue{shape});
  record.fields.emplace_back("data", elements_from(data, type, *elements, stored));
  if (!expanded.empty()) record.fields.emplace_back("expanded", PlainValue{std::move(expanded)});
  return {std::move(record)};
}

std::optional<PrintedJson> tensor_to_json(const rpc::ValueReader& value, std::size_t most,
                                          std::uint64_t& budget) {
  rpc::ValueReader dtype_field, shape_field, layout_field, data_field, expanded_field;
  if (value.kind() != ValueKind::record || !value.find_field("dtype", 0, dtype_field) ||
      !value.find_field("shape", 1, shape_field) || dtype_field.kind() != ValueKind::text)
    return std::nullopt;
  const Dtype* dtype = Dtype::find(dtype_field.get_text());
  const auto shape = read_sizes(shape_field, max_dimensions);
  if (dtype == nullptr || !shape || !count(*shape, dtype->bytes())) return std::nullopt;
  PrintedJson json = PrintedJson::object();
  add_field(json, "dtype", dtype->name());
  add_field(json, "shape", *shape);
  if (value.find_field("layout", 2, layout_field)) {
    if (layout_field.kind() != ValueKind::text) return std::nullopt;
    const std::string_view layout = layout_field.get_text();
    if (layout != "coo" && layout != "csr") return std::nullopt;
    return sparse_to_json(value, layout, std::move(json), most, budget);
  }

  // Along an expanded dimension, one element was sent, and one is printed: a tensor of a few bytes may have
  // any size.
  Sizes stored = *shape;
  if (value.find_field("expanded", 3, expanded_field)) {
    const auto expanded = read_sizes(expanded_field, shape->size());
    if (!expanded) return std::nullopt;
    for (const std::int64_t d : *expanded) {
      if (d < 0 || d >= static_cast<std::int64_t>(shape->size())) return std::nullopt;
      stored[static_cast<std::size_t>(d)] = std::min<std::int64_t>(stored[static_cast<std::size_t>(d)], 1);
    }
    add_field(json, "expanded", *expanded);
  }
  if (!value.find_field("data", 2, data_field)) return std::nullopt;
  rpc::Buffer attached;
  std::span<const std::byte> bytes;
  if (data_field.kind() == ValueKind::attachment) {
    attached = data_field.get_attachment();
    bytes = attached.bytes();
  } else if (data_field.kind() == ValueKind::bytes) {
    bytes = data_field.get_bytes();
  } else {
    return std::nullopt;
  }
  const auto elements = count(stored, dtype->bytes());
  if (!elements || bytes.size() != *elements * dtype->bytes()) return std::nullopt;

  spend(budget, bytes.size());
  const std::byte* at = bytes.data();
  if (*elements <= most && *elements > 0 && stored.size() <= max_nested) {
    add_field(json, "data", nested(*dtype, at, stored, 0));
    return json;
  }
  PrintedJson data = PrintedJson::array();
  for (std::size_t i = 0; i < std::min(*elements, most); ++i, at += dtype->bytes())
    data.push_back(dtype->read(at));
  add_field(json, "data", std::move(data));
  if (*elements > most) add_field(json, "elided", *elements - most);
  return json;
}

}  // namespace weft::tool
