#include "fashion_mnist/dataset.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr const char* package_folder = "/usr/share/datasets/fashion-mnist";
// The mean and deviation of the training images.
constexpr double pixel_mean = 0.2860, pixel_deviation = 0.3530;

// A file in the IDX format: a magic number whose last byte is the rank, the sizes as big-endian numbers, the
// bytes.
at::Tensor read_idx(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (file == nullptr) throw std::runtime_error(fmt::format("cannot open {}", path));
  const auto read = [&](void* to, std::int64_t size) {
    if (gzread(file.get(), to, static_cast<unsigned>(size)) != size)
      throw std::runtime_error(fmt::format("{} is shorter than its header says", path));
  };
  const auto read_number = [&] {
    std::array<unsigned char, 4> bytes;
    read(bytes.data(), bytes.size());
    return (std::int64_t{bytes[0]} << 24) | (bytes[1] << 16) | (bytes[2] << 8) | bytes[3];
  };
  const std::int64_t magic = read_number();
  if (magic >> 8 != 8) throw std::runtime_error(fmt::format("{} is not an IDX file of bytes", path));
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(magic & 0xff));
  for (std::int64_t& size : sizes) size = read_number();
  at::Tensor values = at::empty(sizes, at::kByte);
  read(values.data_ptr(), values.numel());
  return values;
}

}  // namespace

Dataset::Dataset(const std::string& folder, const std::string& part) {
  const std::filesystem::path from = folder.empty() ? package_folder : folder;
  const std::string images = from / (part + "-images-idx3-ubyte.gz"),
                    labels = from / (part + "-labels-idx1-ubyte.gz");
  for (const std::string& file : {images, labels})
    if (!std::filesystem::exists(file))
      throw std::runtime_error(
          fmt::format("{} does not exist: install the package dataset-fashion-mnist, or give the folder with "
                      "its files as --data",
                      file));
  images_ = read_idx(images).unsqueeze(1);
  labels_ = read_idx(labels).to(at::kLong);
}

void Dataset::truncate(std::int64_t size) {
  images_ = images_.slice(0, 0, size);
  labels_ = labels_.slice(0, 0, size);
}

Dataset Dataset::shard(std::int64_t index, std::int64_t shards) const {
  const std::int64_t each = size() / shards;
  Dataset part = *this;
  part.images_ = images_.slice(0, index * each, (index + 1) * each);
  part.labels_ = labels_.slice(0, index * each, (index + 1) * each);
  return part;
}

Batch Dataset::batch(const at::Tensor& indices) const {
  const at::Tensor pixels =
      images_.index_select(0, indices).to(c10::get_default_dtype_as_scalartype()).div_(255);
  return {(pixels - pixel_mean) / pixel_deviation, labels_.index_select(0, indices)};
}

Batch Dataset::batch(std::int64_t begin, std::int64_t end) const {
  return batch(at::arange(begin, std::min(end, size())));
}

std::optional<Batch> Batches::next() {
  const auto indices = next_indices();
  if (!indices) return std::nullopt;
  return data_.batch(*indices);
}

void Batches::skip(std::int64_t batches) {
  while (batches-- > 0 && next_indices()) {
  }
}

std::optional<at::Tensor> Batches::next_indices() {
  if (!order_.defined() || next_ >= data_.size()) {
    if (epochs_left_-- == 0) return std::nullopt;
    order_ = at::randperm(data_.size(), at::kLong);
    next_ = 0;
  }
  const std::int64_t begin = next_;
  next_ += batch_size_;
  return order_.slice(0, begin, next_);
}
