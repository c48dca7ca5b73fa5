// Files in memory, for the targets that read files of tensors.
#pragma once

#include <weft/parallel/weights/source.h>
#include <weft/rpc/core/error.h>

#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "tests/fuzz/target.h"

namespace weft::fuzz {

// Reads all tensors of a path. Every error must be weft's.
inline void read_all(const std::filesystem::path& path, bool checksums) {
  try {
    const auto source = weights::open_source(path, {.checksums = checksums});
    for (const auto& [name, form] : source->tensors()) {
      const at::Tensor view = source->view(name);
      if (view.sizes() != at::IntArrayRef(form.sizes)) fail("a view has another shape than its form");
      if (form.bytes() > 1 << 16) continue;  // elements at a distance of 0 need no bytes
      const at::Tensor to = at::empty(form.sizes, at::TensorOptions(form.dtype));
      source->read(name, to);
      if (!form.sizes.empty() && form.sizes[0] > 0) {
        source->read(name, to.narrow(0, 0, 1), weights::Slice::rows(0, 1));
        const std::int64_t half = form.numel() / 2;
        source->read(name, to.view({-1}).narrow(0, 0, half), weights::Slice::flat(half, 2 * half));
      }
    }
  } catch (const rpc::Error&) {
  }
}

// The same for a file with these bytes.
inline void read_weights(std::string_view bytes, bool checksums) {
  static const int file = ::memfd_create("weights", MFD_CLOEXEC);
  const std::filesystem::path path = "/proc/self/fd/" + std::to_string(file);
  if (::ftruncate(file, 0) != 0 ||
      ::pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    fail("the file cannot be written");
  read_all(path, checksums);
}

}  // namespace weft::fuzz
