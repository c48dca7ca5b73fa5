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

MappedFile::MappedFile(std::shared_ptr<const MappedFile> whole, std::uint64_t begin, std::uint64_t size)
    : whole_(std::move(whole)),
      file_(whole_->file_),
      begin_(whole_->begin_ + begin),
      size_(size),
      data_(whole_->data_ + begin) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr && whole_ == nullptr) ::munmap(data_, size_);
}

std::string MappedFile::description() const {
  const std::string path = file_->path().string();
  return whole_ == nullptr ? path
                           : path + ": in its " + std::to_string(size_) + " bytes from byte " +
                                 std::to_string(begin_) + " on";
}

void MappedFile::fail(const std::string& what) const {
  throw rpc::Error(rpc::ErrorKind::failed_precondition, description() + ": " + what);
}

void MappedFile::refuse(const std::string& what) const {
  throw rpc::Error(rpc::ErrorKind::unsupported, description() + ": " + what);
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
void read_parallel(const MappedFile& file, std::uint64_t begin, std::byte* to, std::int64_t bytes) {
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
    place.file->fail("is damaged: the checksum of the " + std::to_string(record.size) + " bytes at byte " +
                     std::to_string(record.begin) + " is " + std::to_string(crc) + ", expected " +
                     std::to_string(record.crc) + checksum_remedy);
  record.checked = true;
}

void check(const MappedTensor& place) {
  if (place.record != nullptr && !place.record->checked)
    expect_checksum(place, crc32_of(place.file->data() + place.record->begin, place.record->size));
}

bool is_aligned(const TensorForm& form, const MappedTensor& place) {
  const auto address = reinterpret_cast<std::uintptr_t>(place.file->data()) + place.begin;
  return address % std::min<std::size_t>(c10::elementSize(form.dtype), 8) == 0 || form.numel() == 0;
}

// A copy of elements whose memory is not aligned, in C order.
at::Tensor aligned_copy(const at::Tensor& part) {
  const at::Tensor copy = at::empty(part.sizes(), part.options());
  const auto item = static_cast<std::int64_t>(part.element_size());
  std::vector<std::int64_t> sizes = part.sizes().vec(), strides = part.strides().vec();
  for (std::int64_t& stride : strides) stride *= item;
  sizes.push_back(item), strides.push_back(1);
  const auto bytes = at::TensorOptions(at::kByte);
  at::from_blob(copy.mutable_data_ptr(), sizes, bytes)
      .copy_(at::from_blob(const_cast<void*>(part.const_data_ptr()), sizes, strides, bytes));
  return copy;
}

at::Tensor with_signs(const at::Tensor& tensor, const MappedTensor& place) {
  const at::Tensor conjugated = place.conjugate ? at::_conj(tensor) : tensor;
  return place.negative ? at::_neg_view(conjugated) : conjugated;
}

at::Tensor unchecked_view(const TensorForm& form, const MappedTensor& place) {
  at::Tensor tensor;
  if (is_aligned(form, place)) {
    tensor = mapped_tensor(place.file, place.begin, form);
  } else {  // all elements from the first one to the last one
    std::int64_t last = form.numel() - 1;
    if (!form.strides.empty()) {
      last = 0;
      for (std::size_t dim = 0; dim < form.sizes.size(); ++dim)
        last += form.strides[dim] * (form.sizes[dim] - 1);
    }
    tensor = at::empty({last + 1}, at::TensorOptions(form.dtype));
    read_parallel(*place.file, place.begin, static_cast<std::byte*>(tensor.data_ptr()),
                  static_cast<std::int64_t>(tensor.nbytes()));
    tensor = form.strides.empty() ? tensor.view(form.sizes) : tensor.as_strided(form.sizes, form.strides);
  }
  return with_signs(tensor, place);
}

// Fills memory from the file. A record is checked while its bytes are in the cache.
void read_checked(const MappedTensor& place, std::uint64_t begin, std::byte* to, std::uint64_t bytes) {
  const MappedFile& file = *place.file;
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
  // Elements that are not aligned are not used in mapped memory: then only the place of the slice is.
  at::Tensor whole = mapped_tensor(place.file, place.begin, its_form);
  const bool is_used = is_aligned(its_form, place) || (slice.flattened && !whole.is_contiguous());
  if (is_used) whole = unchecked_view(its_form, place);
  const at::Tensor part = part_to_read(name, to, slice, convert, whole);
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
  to.copy_(is_used ? part : with_signs(aligned_copy(part), place));
}

}  // namespace weft::weights
