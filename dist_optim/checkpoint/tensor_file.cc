#include <weft/dist_optim/checkpoint/tensor_file.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/wire/checksum.h>

#include <fcntl.h>

#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cstdio>

namespace weft::dist_optim {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr auto metadata = "__metadata__";
constexpr auto checksum_note = "weft.crc32c", blocks_note = "weft.crc32c.blocks";
constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t longest_header = 100'000'000;      // safetensors' own limit
constexpr std::uint64_t largest = std::uint64_t{1} << 56;  // elements of a tensor

struct Type {
  const char* name;
  at::ScalarType type;
};
// Other programs may not know C32, C128 and the FNUZ types.
constexpr Type types[] = {{"C128", at::kComplexDouble},
                          {"C64", at::kComplexFloat},
                          {"C32", at::kComplexHalf},
                          {"F64", at::kDouble},
                          {"F32", at::kFloat},
                          {"F16", at::kHalf},
                          {"BF16", at::kBFloat16},
                          {"F8_E4M3", at::kFloat8_e4m3fn},
                          {"F8_E5M2", at::kFloat8_e5m2},
                          {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz},
                          {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz},
                          {"I64", at::kLong},
                          {"I32", at::kInt},
                          {"I16", at::kShort},
                          {"I8", at::kChar},
                          {"U64", at::kUInt64},
                          {"U32", at::kUInt32},
                          {"U16", at::kUInt16},
                          {"U8", at::kByte},
                          {"BOOL", at::kBool}};

const char* name_of(at::ScalarType type) {
  const auto* found =
      std::find_if(std::begin(types), std::end(types), [&](auto& one) { return one.type == type; });
  return found == std::end(types) ? nullptr : found->name;
}

[[noreturn]] void refuse_tensor(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, why);
}

TensorForm form_of(const std::string& name, const at::Tensor& tensor) {
  const auto refuse = [&](const std::string& why) {
    refuse_tensor("'" + name + "' cannot be written: it is " + why);
  };
  if (!tensor.defined()) refuse("not defined");
  if (tensor.layout() != at::kStrided) refuse("not dense");
  return {tensor.scalar_type(), tensor.sizes().vec()};
}

std::uint64_t bytes_of(const TensorForm& form) {
  std::uint64_t bytes = c10::elementSize(form.dtype);
  for (const std::int64_t size : form.sizes) bytes *= static_cast<std::uint64_t>(size);
  return bytes;
}

std::string hexadecimal(std::uint32_t number) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", number);
  return digits;
}

std::uint32_t crc_of(const void* data, std::size_t bytes) {
  return rpc::crc32c({static_cast<const std::byte*>(data), bytes});
}

std::size_t digits_of_blocks(std::uint64_t bytes) {
  return static_cast<std::size_t>((bytes + block_bytes - 1) / block_bytes * 8);
}

// The checksum of the header is computed with zeros in place of its own digits.
constexpr auto unknown_checksum = "00000000";

// Replaces the text of a note of checksums in a header; `digits` is as long as the text.
void put_digits(std::string& header, const char* note, const std::string& digits) {
  const std::string before = std::string("\"") + note + "\":\"";
  const auto at = header.find(before);
  if (at != std::string::npos) header.replace(at + before.size(), digits.size(), digits);
}

struct Parsed {
  TensorForm form;
  std::uint64_t begin, end;
};

// elements: the size of all elements in the file, in bytes.
Parsed parse_entry(const CheckedFile& file, const std::string& name, const Json& entry,
                   std::uint64_t elements) {
  const auto damaged = [&](const std::string& why) { file.fail("is damaged: '" + name + "' " + why); };
  const auto type_name = entry.at("dtype").get<std::string>();
  const auto* type =
      std::find_if(std::begin(types), std::end(types), [&](auto& one) { return one.name == type_name; });
  if (type == std::end(types)) damaged("is of type " + type_name + ", which is not supported");
  const auto offsets = entry.at("data_offsets").get<std::vector<std::uint64_t>>();
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > elements)
    damaged("has data_offsets " + entry.at("data_offsets").dump() + " outside of the " +
            std::to_string(elements) + " bytes of elements in the file");
  const std::uint64_t bytes = offsets[1] - offsets[0], item = c10::elementSize(type->type);
  const auto shape = entry.at("shape").get<std::vector<std::uint64_t>>();
  std::uint64_t count = 1, strides = 1;  // if an extent is 0, the other extents determine the strides
  for (const std::uint64_t extent : shape) {
    if (extent > largest / strides) damaged("is larger than any tensor");
    strides *= std::max<std::uint64_t>(extent, 1);
    count *= extent;
  }
  if (count > bytes / item || count * item != bytes)
    damaged("has " + std::to_string(count) + " elements of " + std::to_string(item) + " bytes, but " +
            std::to_string(bytes) + " bytes in the file");
  return {{type->type, {shape.begin(), shape.end()}}, offsets[0], offsets[1]};
}

// Writes elements and keeps the checksum of each block of them.
class BlockWriter {
 public:
  explicit BlockWriter(CheckedFile& file) : file_(file) { file_.restart_crc(); }
  void write(const void* data, std::uint64_t bytes) {
    for (const auto* from = static_cast<const std::byte*>(data); bytes != 0;) {
      const std::uint64_t now = std::min(bytes, block_bytes - in_block_);
      file_.write(from, now);
      from += now, bytes -= now, in_block_ += now;
      if (in_block_ == block_bytes) finish();
    }
  }
  void finish() {  // a block
    if (in_block_ == 0) return;
    digits_ += hexadecimal(file_.crc());
    file_.restart_crc();
    in_block_ = 0;
  }
  const std::string& digits() const { return digits_; }

 private:
  CheckedFile& file_;
  std::uint64_t in_block_ = 0;
  std::string digits_;
};

}  // namespace

std::uint32_t write_tensor_file(const std::filesystem::path& path, const TensorFile& contents) {
  std::map<std::string, TensorForm> forms;
  for (const auto& [name, tensor] : contents.tensors) forms.emplace(name, form_of(name, tensor));
  return write_tensor_file(path, forms, contents.notes,
                           [&](const std::string& name) { return contents.tensors.at(name); });
}

std::uint32_t write_tensor_file(const std::filesystem::path& path,
                                const std::map<std::string, TensorForm>& forms,
                                const std::map<std::string, std::string>& notes,
                                const std::function<at::Tensor(const std::string&)>& values) {
  Json header = Json::object();
  std::uint64_t end = 0;
  for (const auto& [name, form] : forms) {
    if (name_of(form.dtype) == nullptr)
      refuse_tensor("'" + name + "' cannot be written: it is of type " + c10::toString(form.dtype));
    if (name == metadata)
      refuse_tensor("'" + name + "' cannot be written: the name is reserved for the notes");
    const std::uint64_t begin = end;
    end += bytes_of(form);
    header[name] = {{"dtype", name_of(form.dtype)}, {"shape", form.sizes}, {"data_offsets", {begin, end}}};
  }
  header[metadata] = notes;
  header[metadata][checksum_note] = unknown_checksum;
  header[metadata][blocks_note] = std::string(digits_of_blocks(end), '0');
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception&) {
    refuse_tensor("a tensor file cannot be written: its names and notes must be UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the elements are aligned
  std::uint32_t crc = 0;
  write_whole(path, [&](CheckedFile& file) {
    const std::uint64_t length = text.size();
    file.write(&length, sizeof length);
    file.write(text.data(), text.size());
    BlockWriter blocks(file);
    for (const auto& [name, form] : forms) {
      const at::Tensor tensor = values(name);
      const TensorForm has = form_of(name, tensor);
      if (has.dtype != form.dtype || has.sizes != form.sizes)
        refuse_tensor("'" + name + "' cannot be written: its dtype (" + c10::toString(has.dtype) +
                      ") or its sizes differ from those in the header (" + c10::toString(form.dtype) + ")");
      const at::Tensor dense = tensor.detach().cpu().contiguous();
      blocks.write(dense.const_data_ptr(), dense.nbytes());
    }
    blocks.finish();
    put_digits(text, blocks_note, blocks.digits());
    crc = crc_of(text.data(), text.size());
    put_digits(text, checksum_note, hexadecimal(crc));
    file.write_at(sizeof length, text.data(), text.size());
  });
  return crc;
}

TensorFileReader::TensorFileReader(const std::filesystem::path& path) : file_(path, O_RDONLY) {
  const std::uint64_t size = file_.size();
  std::uint64_t length = 0;
  file_.read_at(0, &length, sizeof length);
  if (length > longest_header || length > size - sizeof length)
    file_.fail("is damaged, or not a tensor file: it states a header of " + std::to_string(length) +
               " bytes, expected at most " + std::to_string(std::min(longest_header, size - sizeof length)));
  elements_at_ = sizeof length + length;
  elements_bytes_ = size - elements_at_;
  std::string text(length, '\0');
  file_.read_at(sizeof length, text.data(), length);
  const Json header = Json::parse(text, nullptr, false);
  if (!header.is_object()) file_.fail("is damaged, or not a tensor file: its header is not JSON");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name == metadata) {
        notes_ = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      Parsed parsed = parse_entry(file_, name, entry, elements_bytes_);
      ranges.emplace_back(parsed.begin, parsed.end);
      places_.emplace(name, parsed.begin);
      forms_.emplace(name, std::move(parsed.form));
    }
  } catch (const Json::exception& error) {
    file_.fail(std::string("is damaged: its header is not of this format: ") + error.what());
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin != at)
      file_.fail("is damaged: its tensors overlap or have gaps: one begins at byte " + std::to_string(begin) +
                 ", expected " + std::to_string(at));
    at = end;
  }
  if (at != elements_bytes_)
    file_.fail("is damaged: it is longer than its tensors: it has " + std::to_string(elements_bytes_) +
               " bytes of elements, expected " + std::to_string(at));
  if (const auto note = notes_.find(checksum_note); note != notes_.end()) {
    put_digits(text, checksum_note, unknown_checksum);
    crc_ = crc_of(text.data(), text.size());
    if (note->second != hexadecimal(crc_))
      file_.fail("is damaged: the checksum of its header is " + hexadecimal(crc_) + ", expected " +
                 note->second);
    blocks_ = notes_[blocks_note];
    if (blocks_.size() != digits_of_blocks(elements_bytes_))
      file_.fail("is damaged: it has " + std::to_string(blocks_.size()) + " digits of checksums, expected " +
                 std::to_string(digits_of_blocks(elements_bytes_)));
    notes_.erase(checksum_note), notes_.erase(blocks_note);
    proven_ = true;
  }
}

void TensorFileReader::read(const std::string& name, std::int64_t begin, const at::Tensor& to) {
  const TensorForm& form = forms_.at(name);
  const std::uint64_t item = c10::elementSize(form.dtype), all = bytes_of(form) / item;
  const auto count = static_cast<std::uint64_t>(to.numel());
  if (begin < 0 || count > all || static_cast<std::uint64_t>(begin) > all - count)
    refuse_tensor(file_.path().string() + ": '" + name + "' has " + std::to_string(all) + " elements, not " +
                  std::to_string(count) + " from " + std::to_string(begin) + " on");
  if (to.scalar_type() != form.dtype)
    refuse_tensor(file_.path().string() + ": '" + name + "' is of type " + c10::toString(form.dtype) +
                  ", not " + c10::toString(to.scalar_type()));
  const std::uint64_t first = places_.at(name) + static_cast<std::uint64_t>(begin) * item;
  const bool direct = to.device().is_cpu() && to.is_contiguous();
  const at::Tensor values = direct ? to.detach() : at::empty(to.sizes(), at::TensorOptions(form.dtype));
  read_bytes(first, first + count * item, static_cast<std::byte*>(values.mutable_data_ptr()));
  if (!direct) to.detach().copy_(values);
}

void TensorFileReader::read_bytes(std::uint64_t begin, std::uint64_t end, std::byte* to) {
  if (!proven_) return file_.read_at(elements_at_ + begin, to, end - begin);
  while (begin < end) {
    const std::uint64_t block = begin / block_bytes, first = block * block_bytes,
                        last = std::min(first + block_bytes, elements_bytes_), now = std::min(end, last);
    if (begin == first && now == last) {
      read_block(block, to);
    } else {
      if (last_block_ != block) {
        last_block_ = ~std::uint64_t{0};  // in case it fails
        last_.resize(block_bytes);
        read_block(block, last_.data());
        last_block_ = block;
      }
      std::copy_n(last_.data() + (begin - first), now - begin, to);
    }
    to += now - begin;
    begin = now;
  }
}

void TensorFileReader::read_block(std::uint64_t block, std::byte* to) {
  const std::uint64_t first = block * block_bytes, bytes = std::min(block_bytes, elements_bytes_ - first);
  file_.read_at(elements_at_ + first, to, bytes);
  const std::string found = hexadecimal(crc_of(to, bytes)), expected = blocks_.substr(block * 8, 8);
  if (found != expected)
    file_.fail("is damaged: the checksum of MiB " + std::to_string(block) + " of its elements is " + found +
               ", expected " + expected);
}

TensorFile read_tensor_file(const std::filesystem::path& path) {
  TensorFileReader reader(path);
  TensorFile contents{{}, reader.notes(), reader.proven()};
  for (const auto& [name, form] : reader.tensors()) {
    const at::Tensor tensor = at::empty(form.sizes, at::TensorOptions(form.dtype));
    reader.read(name, 0, tensor);
    contents.tensors.emplace(name, tensor);
  }
  return contents;
}

}  // namespace weft::dist_optim
