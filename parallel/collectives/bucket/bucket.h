// A bucket's memory: many pieces (gradients) put one after the other into one flat memory, and back again,
// scaled and cast on the way.
//
// Pieces are contiguous and in the flat memory in their order, without gaps; memory is aligned as its type
// asks, and neither overlaps the other. Products are made in float64 where either side is, else in float32,
// and are cast last, rounded to nearest even; a NaN comes out as the quiet NaN without a payload. The
// functions with a stream do the same on a GPU, bit for bit; they exist where weft is built with WEFT_CUDA,
// put kernels on the stream and return. invalid_argument for what cannot be, failed_precondition where CUDA
// refuses. Thread-safe; the memory is the caller's, until the stream is done with it.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/tensor/kernel/host_device.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace weft::collectives::bucket {

enum class Element : std::uint8_t { float16, bfloat16, float32, float64 };

struct Piece {
  void* data;  // only read by flatten()
  std::size_t count;
};

struct Format {
  Element pieces;
  Element flat;
  double scale = 1;  // what each element is multiplied with, in either direction
};

WEFT_EXPORT void flatten(void* flat, std::span<const Piece> pieces, const Format& format);
WEFT_EXPORT void unflatten(std::span<const Piece> pieces, const void* flat, const Format& format);

// On the device that is CUDA's current one, which the stream is of; memory is that device's.
WEFT_EXPORT void flatten(void* flat, std::span<const Piece> pieces, const Format& format,
                         CUstream_st* stream);
WEFT_EXPORT void unflatten(std::span<const Piece> pieces, const void* flat, const Format& format,
                           CUstream_st* stream);

}  // namespace weft::collectives::bucket
