#include <weft/dist_optim/checkpoint/tensor_file.h>

#include <weft/parallel/weights/internal/safetensors_header.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/wire/checksum.h>

#include <fcntl.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdio>

namespace weft::dist_optim {
namespace {

constexpr auto checksum_note = "weft.crc32c", blocks_note = "weft.crc32c.blocks";
constexpr std::uint64_t block_bytes = std::uint64_t{1} << 20;

[[noreturn]] void refuse_tensor(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, why);
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

// Writes elements and keeps the checksum of each block of them.
class BlockWriter {
 public:
  explicit BlockWriter(weights::CheckedFile& file) : file_(file) { file_.restart_crc(); }
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
  weights::CheckedFile& file_;
  std::uint64_t in_block_ = 0;
  std::string digits_;
};

}  // namespace

std::uint32_t write_tensor_file(const std::filesystem::path& path, const TensorFile& contents) {
  const weights::TensorForms forms = weights::forms_of(contents.tensors);
  return write_tensor_file(path, forms, contents.notes,
                           [&](const std::string& name) { return contents.tensors.at(name); });
}

std::uint32_t write_tensor_file(const std::filesystem::path& path,
                                const std::map<std::string, TensorForm>& forms,
                                const std::map<std::string, std::string>& notes,
                                const std::function<at::Tensor(const std::string&)>& values) {
  std::uint64_t bytes = 0;
  for (const auto& [name, form] : forms) bytes += form.bytes();
  std::map<std::string, std::string> all_notes = notes;
  all_notes[checksum_note] = unknown_checksum;
  all_notes[blocks_note] = std::string(digits_of_blocks(bytes), '0');
  std::string text = weights::safetensors_header_text({forms.begin(), forms.end()}, all_notes, true);
  std::uint32_t crc = 0;
  weights::write_whole(path, [&](weights::CheckedFile& file) {
    const std::uint64_t length = text.size();
    file.write(&length, sizeof length);
    file.write(text.data(), text.size());
    BlockWriter blocks(file);
    for (const auto& [name, form] : forms) {
      const at::Tensor tensor = values(name);
      const TensorForm has = weights::forms_of({{name, tensor}}).at(name);
      if (has.dtype != form.dtype || has.sizes != form.sizes)
        refuse_tensor("'" + name + "' cannot be written: it is " + weights::to_text(has) +
                      ", in the header it is " + weights::to_text(form));
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

namespace {

// Only a damaged file of weft has a type that LibTorch lacks.
weights::SafetensorsHeader header_of(const weights::CheckedFile& file) try {
  return weights::read_safetensors_header(file);
} catch (const rpc::Error& error) {
  if (error.kind() != rpc::ErrorKind::unsupported) throw;
  throw rpc::Error(rpc::ErrorKind::failed_precondition, error.what());
}

}  // namespace

TensorFileReader::TensorFileReader(const std::filesystem::path& path) : file_(path, O_RDONLY) {
  weights::SafetensorsHeader header = header_of(file_);
  forms_ = std::move(header.forms);
  places_ = std::move(header.places);
  notes_ = std::move(header.notes);
  elements_at_ = header.elements_at;
  elements_bytes_ = header.elements_bytes;
  if (const auto note = notes_.find(checksum_note); note != notes_.end()) {
    put_digits(header.text, checksum_note, unknown_checksum);
    crc_ = crc_of(header.text.data(), header.text.size());
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
  const std::uint64_t item = c10::elementSize(form.dtype), all = form.bytes() / item;
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
