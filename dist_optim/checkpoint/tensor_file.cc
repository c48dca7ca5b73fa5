#include <weft/dist_optim/checkpoint/tensor_file.h>

#include <weft/dist_optim/checkpoint/checked_file.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/wire/checksum.h>

#include <fcntl.h>

#include <ATen/Functions.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstdio>

namespace weft::dist_optim {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr auto metadata = "__metadata__";
constexpr auto checksum_note = "weft.crc32c";
constexpr std::uint64_t longest_header = 100'000'000;      // safetensors' own limit
constexpr std::uint64_t largest = std::uint64_t{1} << 56;  // elements of a tensor

struct Type {
  const char* name;
  at::ScalarType type;
};
constexpr Type types[] = {{"F64", at::kDouble},
                          {"F32", at::kFloat},
                          {"F16", at::kHalf},
                          {"BF16", at::kBFloat16},
                          {"F8_E4M3", at::kFloat8_e4m3fn},
                          {"F8_E5M2", at::kFloat8_e5m2},
                          {"I64", at::kLong},
                          {"I32", at::kInt},
                          {"I16", at::kShort},
                          {"I8", at::kChar},
                          {"U8", at::kByte},
                          {"BOOL", at::kBool}};

const char* name_of(at::ScalarType type) {
  const auto* found =
      std::find_if(std::begin(types), std::end(types), [&](auto& one) { return one.type == type; });
  return found == std::end(types) ? nullptr : found->name;
}

at::Tensor as_written(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "'" + name + "' cannot be written: it is " + why);
  };
  if (!tensor.defined()) refuse("not defined");
  if (tensor.layout() != at::kStrided) refuse("not dense");
  if (name_of(tensor.scalar_type()) == nullptr)
    refuse(std::string("of type ") + c10::toString(tensor.scalar_type()));
  if (name == metadata) refuse("named as the notes are");
  return tensor.detach().cpu().contiguous();
}

std::string hexadecimal(std::uint32_t number) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", number);
  return digits;
}

std::uint32_t crc_of(const void* data, std::size_t bytes, std::uint32_t seed) {
  return rpc::crc32c({static_cast<const std::byte*>(data), bytes}, seed);
}

// The checksum is that of the header, with this in its own place, and of the elements.
constexpr auto unknown_checksum = "00000000";
// As it stands in the header, without the quote at its end.
std::string checksum_text(const std::string& digits) {
  return std::string("\"") + checksum_note + "\":\"" + digits;
}

// One tensor of a file that is read: where its elements are, and where they go.
struct Place {
  std::uint64_t begin, end;
  at::Tensor tensor;
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : file_(path, O_RDONLY) {}

  TensorFile read() {
    TensorFile contents;
    std::vector<Place> places;
    const Json header = read_header();
    try {
      for (const auto& [name, entry] : header.items()) {
        if (name == metadata) {
          contents.notes = entry.get<std::map<std::string, std::string>>();
          continue;
        }
        places.push_back(place_of(name, entry));
        contents.tensors.emplace(name, places.back().tensor);
      }
    } catch (const Json::exception& error) {
      file_.fail(std::string("is damaged: its header is not of this format: ") + error.what());
    }
    read_elements(std::move(places));
    if (const auto note = contents.notes.find(checksum_note); note != contents.notes.end()) {
      if (note->second != hexadecimal(file_.crc())) file_.fail("is damaged: its checksum is wrong");
      contents.notes.erase(note);
      contents.proven = true;
    }
    return contents;
  }

 private:
  Json read_header() {
    const std::uint64_t size = file_.size();
    std::uint64_t length = 0;
    file_.read(&length, sizeof length);
    if (length > longest_header || length > size - sizeof length)
      file_.fail("is damaged, or no file of tensors: its header would be longer than it is");
    elements_ = size - sizeof length - length;
    std::string text(length, '\0');
    file_.read(text.data(), length);
    Json header = Json::parse(text, nullptr, false);
    if (!header.is_object()) file_.fail("is damaged, or no file of tensors: its header is not JSON");
    if (const auto at = text.find(checksum_text("")); at != std::string::npos)
      text.replace(at, checksum_text(unknown_checksum).size(), checksum_text(unknown_checksum));
    file_.restart_crc(crc_of(text.data(), text.size(), 0));
    return header;
  }

  Place place_of(const std::string& name, const Json& entry) {
    const auto damaged = [&](const std::string& why) { file_.fail("is damaged: '" + name + "' " + why); };
    const auto type_name = entry.at("dtype").get<std::string>();
    const auto* type =
        std::find_if(std::begin(types), std::end(types), [&](auto& one) { return one.name == type_name; });
    if (type == std::end(types)) damaged("is of type " + type_name + ", which is not read");
    const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > elements_)
      damaged("lies outside of the file");
    const std::uint64_t bytes = offsets[1] - offsets[0], item = c10::elementSize(type->type);
    const auto shape = entry.at("shape").get<std::vector<std::uint64_t>>();
    std::uint64_t count = 1, strides = 1;  // where an extent is 0, the others count for the strides
    for (const std::uint64_t extent : shape) {
      if (extent > largest / strides) damaged("is larger than any tensor");
      strides *= std::max<std::uint64_t>(extent, 1);
      count *= extent;
    }
    if (count > bytes / item || count * item != bytes) damaged("is not as large as its place");
    return {offsets[0], offsets[1],
            at::empty(std::vector<std::int64_t>(shape.begin(), shape.end()), at::TensorOptions(type->type))};
  }

  void read_elements(std::vector<Place> places) {
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t at = 0;
    for (const Place& place : places) {
      if (place.begin != at) file_.fail("is damaged: its tensors overlap, or leave gaps");
      at = place.end;
      file_.read(place.tensor.data_ptr(), place.end - place.begin);
    }
    if (at != elements_) file_.fail("is damaged: it is longer than its tensors");
  }

  CheckedFile file_;
  std::uint64_t elements_ = 0;  // how many bytes of them
};

}  // namespace

void write_tensor_file(const std::filesystem::path& path, const TensorFile& contents) {
  std::vector<at::Tensor> tensors;
  Json header = Json::object();
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : contents.tensors) {
    tensors.push_back(as_written(name, tensor));
    const at::Tensor& one = tensors.back();
    header[name] = {{"dtype", name_of(one.scalar_type())},
                    {"shape", one.sizes().vec()},
                    {"data_offsets", {at, at + one.nbytes()}}};
    at += one.nbytes();
  }
  header[metadata] = contents.notes;
  header[metadata][checksum_note] = unknown_checksum;
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "names and notes of a file of tensors must be UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the elements are aligned
  std::uint32_t crc = crc_of(text.data(), text.size(), 0);
  for (const at::Tensor& tensor : tensors) crc = crc_of(tensor.const_data_ptr(), tensor.nbytes(), crc);
  const std::string place = checksum_text(unknown_checksum);
  text.replace(text.rfind(place), place.size(), checksum_text(hexadecimal(crc)));
  write_whole(path, [&](CheckedFile& file) {
    const std::uint64_t length = text.size();
    file.write(&length, sizeof length);
    file.write(text.data(), text.size());
    for (const at::Tensor& tensor : tensors) file.write(tensor.const_data_ptr(), tensor.nbytes());
  });
}

TensorFile read_tensor_file(const std::filesystem::path& path) { return Reader(path).read(); }

}  // namespace weft::dist_optim
