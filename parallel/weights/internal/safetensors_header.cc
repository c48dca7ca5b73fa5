#include <weft/parallel/weights/internal/safetensors_header.h>

#include <weft/parallel/weights/internal/dtypes.h>
#include <weft/rpc/core/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <set>

namespace weft::weights {
namespace {

using HeaderJson = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr auto metadata = "__metadata__";
constexpr std::uint64_t longest_header = 100'000'000;      // safetensors' own limit
constexpr std::uint64_t largest = std::uint64_t{1} << 56;  // elements of a tensor
constexpr int deepest = 8;

// The offsets in the file of a tensor's elements; `elements`: the size of all elements, in bytes.
std::pair<std::uint64_t, std::uint64_t> parse_entry(const CheckedFile& file, const std::string& name,
                                                    const HeaderJson& entry, std::uint64_t elements,
                                                    TensorForm& form) {
  const auto damaged = [&](const std::string& why) { file.fail("is damaged: '" + name + "' " + why); };
  const auto type_name = entry.at("dtype").get<std::string>();
  const Dtype* const dtype = dtype_of_safetensors(type_name);
  if (dtype == nullptr)
    throw rpc::Error(rpc::ErrorKind::unsupported, file.path().string() + ": '" + name + "' is of type " +
                                                      type_name + ", which weft does not read");
  for (const char* field : {"data_offsets", "shape"})
    for (const HeaderJson& number : entry.at(field))
      if (!number.is_number_unsigned())
        damaged(std::string("has ") + field + " " + entry.at(field).dump() + ", expected whole numbers");
  const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > elements)
    damaged("has data_offsets " + entry.at("data_offsets").dump() + " outside of the " +
            std::to_string(elements) + " bytes of elements in the file");
  const std::uint64_t bytes = offsets[1] - offsets[0], item = c10::elementSize(dtype->type);
  auto shape = entry.at("shape").get<std::vector<std::uint64_t>>();
  if (dtype->elements_of_shape != 1) {
    if (shape.empty() || shape.back() % static_cast<std::uint64_t>(dtype->elements_of_shape) != 0)
      damaged("is of type " + type_name + " and has shape " + entry.at("shape").dump() +
              ", expected an even last extent");
    shape.back() /= static_cast<std::uint64_t>(dtype->elements_of_shape);
  }
  std::uint64_t count = 1, strides = 1;  // if an extent is 0, the other extents determine the strides
  for (const std::uint64_t extent : shape) {
    if (extent > largest / strides) damaged("is larger than any tensor");
    strides *= std::max<std::uint64_t>(extent, 1);
    count *= extent;
  }
  if (count > bytes / item || count * item != bytes)
    damaged("has " + std::to_string(count) + " elements of " + std::to_string(item) + " bytes, but " +
            std::to_string(bytes) + " bytes in the file");
  form = {dtype->type, {shape.begin(), shape.end()}};
  return {offsets[0], offsets[1]};
}

}  // namespace

HeaderJson parse_checked_json(const CheckedFile& file, const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of the objects that contain the position
  const auto check = [&](int depth, HeaderJson::parse_event_t event, HeaderJson& value) {
    using Event = HeaderJson::parse_event_t;
    if (depth > deepest)
      file.fail("is damaged: its JSON is nested more than " + std::to_string(deepest) + " deep");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
      file.fail("is damaged: it has the name '" + value.get<std::string>() + "' twice");
    return true;
  };
  HeaderJson json = HeaderJson::parse(text, check, false);
  if (!json.is_object()) file.fail("is damaged, or not of this format: it is not JSON, or no object");
  return json;
}

SafetensorsHeader read_safetensors_header(const CheckedFile& file) {
  SafetensorsHeader header;
  const std::uint64_t size = file.size();
  std::uint64_t length = 0;
  file.read_at(0, &length, sizeof length);
  if (length > longest_header || length > size - sizeof length)
    file.fail("is damaged, or not a tensor file: it states a header of " + std::to_string(length) +
              " bytes, expected at most " + std::to_string(std::min(longest_header, size - sizeof length)));
  header.elements_at = sizeof length + length;
  header.elements_bytes = size - header.elements_at;
  header.text.resize(length);
  file.read_at(sizeof length, header.text.data(), length);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  const HeaderJson json = parse_checked_json(file, header.text);
  try {
    for (const auto& [name, entry] : json.items()) {
      if (name == metadata) {
        header.notes = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      ranges.push_back(parse_entry(file, name, entry, header.elements_bytes, header.forms[name]));
      header.places.emplace(name, ranges.back().first);
    }
  } catch (const HeaderJson::exception& error) {
    file.fail(std::string("is damaged: its header is not of this format: ") + error.what());
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at)
      file.fail("is damaged: its tensors overlap or have gaps: one begins at byte " + std::to_string(begin) +
                ", expected " + std::to_string(at));
    at = end;
  }
  if (at != header.elements_bytes)
    file.fail("is damaged: it is longer than its tensors: it has " + std::to_string(header.elements_bytes) +
              " bytes of elements, expected " + std::to_string(at));
  return header;
}

std::string safetensors_header_text(const std::vector<std::pair<std::string, TensorForm>>& tensors,
                                    const std::map<std::string, std::string>& notes, bool extended) {
  const auto refuse = [](const std::string& why) { throw rpc::Error(rpc::ErrorKind::invalid_argument, why); };
  HeaderJson header = HeaderJson::object();
  std::uint64_t end = 0;
  for (const auto& [name, form] : tensors) {
    const Dtype* const dtype = dtype_of(form.dtype);
    if (dtype == nullptr || (dtype->only_in_weft && !extended))
      refuse("'" + name + "' cannot be written: it is of type " + name_of(form.dtype) +
             ", which the format safetensors does not have");
    if (name == metadata) refuse("'" + name + "' cannot be written: the name is reserved for the notes");
    std::vector<std::int64_t> shape = form.sizes;
    if (dtype->elements_of_shape != 1) {
      if (shape.empty())
        refuse("'" + name + "' cannot be written: " + name_of(form.dtype) + " has no 0-dim tensors");
      shape.back() *= dtype->elements_of_shape;
    }
    const std::uint64_t begin = end;
    end += form.bytes();
    header[name] = {{"dtype", dtype->safetensors}, {"shape", shape}, {"data_offsets", {begin, end}}};
  }
  if (!notes.empty()) header[metadata] = notes;
  std::string text;
  try {
    text = header.dump();
  } catch (const HeaderJson::exception&) {
    refuse("a tensor file cannot be written: its names and notes must be UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the elements are aligned
  if (text.size() > longest_header)
    refuse("a tensor file cannot be written: its header has " + std::to_string(text.size()) +
           " bytes, expected at most " + std::to_string(longest_header));
  return text;
}

}  // namespace weft::weights
