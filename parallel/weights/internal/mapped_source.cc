#include <weft/parallel/weights/internal/mapped_source.h>

#include <weft/parallel/weights/internal/crc32.h>
#include <weft/parallel/weights/internal/in_parallel.h>
#include <weft/rpc/core/error.h>

#include <fcntl.h>
#include <sys/mman.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

namespace weft::weights {

MappedFile::MappedFile(const std::filesystem::path& path)
    : MappedFile(std::make_shared<CheckedFile>(path, O_RDONLY), Access::read) {}

MappedFile::MappedFile(std::shared_ptr<CheckedFile> file, Access access)
    : file_(std::move(file)), size_(file_->size()) {
  if (size_ == 0) return;
  void* const memory =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE,
             access == Access::read ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED, file_->descriptor(), 0);
  if (memory == MAP_FAILED) file_->fail_with_errno("cannot be mapped into memory");
  data_ = static_cast<std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

at::Tensor mapped_tensor(const std::shared_ptr<const MappedFile>& file, std::uint64_t begin,
                         const TensorForm& form) {
  if (form.numel() == 0) return at::empty(form.sizes, at::TensorOptions(form.dtype));
  auto memory = at::for_blob(file->data() + begin, form.sizes);
  if (!form.strides.empty()) memory.strides(form.strides);
  return memory.deleter([file](void*) {}).options(at::TensorOptions(form.dtype)).make_tensor();
}

namespace {

// Parts of this size are read by several threads.
constexpr std::int64_t bytes_of_part = std::int64_t{8} << 20;

// Fills memory from the file. This is faster than a copy from mapped pages, because no page is mapped.
void read_parallel(const CheckedFile& file, std::uint64_t begin, std::byte* to, std::int64_t bytes) {
  in_parallel((bytes + bytes_of_part - 1) / bytes_of_part, [&](std::int64_t part) {
    const std::int64_t first = part * bytes_of_part, size = std::min(bytes_of_part, bytes - first);
    file.read_at(begin + static_cast<std::uint64_t>(first), to + first, static_cast<std::size_t>(size));
  });
}

}  // namespace

bool MappedSource::add(const std::string& name, TensorForm form, MappedTensor place) {
  return tensors_.emplace(name, std::move(form)).second && places_.emplace(name, std::move(place)).second;
}

void MappedSource::share(const std::string& name, const std::string& kept) {
  TensorForm& its_form = tensors_.at(kept);
  its_form.storage = kept;
  (void)add(name, TensorForm(its_form), places_.at(kept));
}

namespace {

void expect_checksum(const MappedTensor& place, std::uint32_t crc) {
  CheckedRecord& record = *place.record;
  if (crc != record.crc)
    place.file->file().fail("is damaged: the checksum of the " + std::to_string(record.size) +
                            " bytes at byte " + std::to_string(record.begin) + " is " + std::to_string(crc) +
                            ", expected " + std::to_string(record.crc) + checksum_remedy);
  record.checked = true;
}

void check(const MappedTensor& place) {
  if (place.record != nullptr && !place.record->checked)
    expect_checksum(place, crc32_of(place.file->data() + place.record->begin, place.record->size));
}

bool is_aligned(const TensorForm& form, const MappedTensor& place) {
  return place.begin % std::min<std::size_t>(c10::elementSize(form.dtype), 8) == 0 || form.numel() == 0;
}

at::Tensor unchecked_view(const TensorForm& form, const MappedTensor& place) {
  at::Tensor tensor;
  if (is_aligned(form, place)) {
    tensor = mapped_tensor(place.file, place.begin, form);
  } else {  // only in safetensors, so it has C order
    tensor = at::empty(form.sizes, at::TensorOptions(form.dtype));
    read_parallel(place.file->file(), place.begin, static_cast<std::byte*>(tensor.data_ptr()),
                  static_cast<std::int64_t>(tensor.nbytes()));
  }
  if (place.conjugate) tensor = at::_conj(tensor);
  if (place.negative) tensor = at::_neg_view(tensor);
  return tensor;
}

// Fills memory from the file. A record is checked while its bytes are in the cache.
void read_checked(const MappedTensor& place, std::uint64_t begin, std::byte* to, std::uint64_t bytes) {
  const CheckedFile& file = place.file->file();
  const auto is_whole = [&](const CheckedRecord& record) {
    return record.begin == begin && record.size == bytes;
  };
  if (place.record != nullptr && !place.record->checked && is_whole(*place.record)) {
    expect_checksum(place, crc32_of(bytes, [&](std::uint64_t at, std::size_t size) {
                      file.read_at(begin + at, to + at, size);
                      return to + at;
                    }));
  } else {
    check(place);
    read_parallel(file, begin, to, static_cast<std::int64_t>(bytes));
  }
}

}  // namespace

at::Tensor MappedSource::view(const std::string& name) const {
  const TensorForm& its_form = form(name);
  check(places_.at(name));
  return unchecked_view(its_form, places_.at(name));
}

void MappedSource::read(const std::string& name, const at::Tensor& to, const Slice& slice,
                        bool convert) const {
  const at::NoGradGuard no_history;
  const TensorForm& its_form = form(name);
  const MappedTensor& place = places_.at(name);
  const std::string what = description_ + ": '" + name + "'";
  const auto refuse = [&](const std::string& why) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, what + why);
  };
  if (!to.defined()) refuse(" cannot be read into a tensor that is not defined");
  if (to.scalar_type() != its_form.dtype && !convert)
    refuse(" is " + to_text(its_form) + ", the tensor to fill is " +
           to_text({to.scalar_type(), to.sizes().vec()}));
  // Elements that are not aligned are not used in mapped memory: then only the place of the slice is.
  const bool usable = is_aligned(its_form, place);
  const at::Tensor whole =
      usable ? unchecked_view(its_form, place) : mapped_tensor(place.file, place.begin, its_form);
  const at::Tensor part = slice.of(whole, what);
  if (part.sizes() != to.sizes())
    refuse(" has a slice of " + to_text({its_form.dtype, part.sizes().vec()}) + ", the tensor to fill is " +
           to_text({to.scalar_type(), to.sizes().vec()}));
  if (part.numel() == 0) return;
  const bool direct = to.device().is_cpu() && to.scalar_type() == part.scalar_type() && to.is_contiguous() &&
                      !to.is_conj() && !to.is_neg() && part.is_contiguous() && !place.conjugate &&
                      !place.negative && part.is_alias_of(whole);
  if (direct) {
    const auto skipped = static_cast<std::uint64_t>(static_cast<const char*>(part.const_data_ptr()) -
                                                    static_cast<const char*>(whole.const_data_ptr()));
    to.unsafeGetTensorImpl()->bump_version();
    return read_checked(place, place.begin + skipped, static_cast<std::byte*>(to.mutable_data_ptr()),
                        part.nbytes());
  }
  check(place);
  to.copy_(usable ? part : slice.of(unchecked_view(its_form, place), what));
}

}  // namespace weft::weights
