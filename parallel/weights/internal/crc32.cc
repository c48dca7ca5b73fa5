// Processors of x86-64 multiply polynomials (PCLMULQDQ). A remainder of 128 bits is then moved over 16 bytes
// of the message with two multiplications, and over 64 bytes with the same two in each of four remainders
// (Gopal et al. 2009, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"). A file is
// otherwise read several times as fast as its checksum is computed.
#include <weft/parallel/weights/internal/crc32.h>
#include <weft/parallel/weights/internal/in_parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace weft::weights {
namespace {

// LibTorch's own, which it neither exports nor declares inline.
#include <caffe2/serialize/crc_alt.h>

constexpr std::int64_t crc_part = std::int64_t{8} << 20;   // of a thread at a time
constexpr std::int64_t crc_block = std::int64_t{1} << 20;  // stays in the cache

#ifdef __x86_64__

__attribute__((target("pclmul"))) inline __m128i moved(__m128i remainder, __m128i factors, __m128i next) {
  return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(remainder, factors, 0x00),
                                           _mm_clmulepi64_si128(remainder, factors, 0x11)));
}

// Of at least 64 bytes, a multiple of 16.
__attribute__((target("pclmul"))) std::uint32_t crc32_by_multiplication(const std::byte* data,
                                                                        std::size_t bytes,
                                                                        std::uint32_t before) {
  // Powers of x modulo the polynomial, with their bits reversed: the distances are 512 and 128 bits.
  const __m128i over_64_bytes = _mm_set_epi64x(0x1c6e41596, 0x154442bd4),
                over_16_bytes = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  const auto* next = reinterpret_cast<const __m128i*>(data);
  __m128i all[4];
  for (__m128i& each : all) each = _mm_loadu_si128(next++);
  all[0] = _mm_xor_si128(all[0], _mm_cvtsi32_si128(static_cast<int>(~before)));
  for (bytes -= 64; bytes >= 64; bytes -= 64)
    for (__m128i& each : all) each = moved(each, over_64_bytes, _mm_loadu_si128(next++));
  __m128i last = all[0];
  for (int i = 1; i < 4; ++i) last = moved(last, over_16_bytes, all[i]);
  for (; bytes != 0; bytes -= 16) last = moved(last, over_16_bytes, _mm_loadu_si128(next++));
  return crc32_fast(&last, sizeof last, ~std::uint32_t{0});  // the remainder of 16 bytes, from a state of 0
}

std::uint32_t crc32_of_block(const std::byte* data, std::size_t bytes, std::uint32_t before) {
  static const bool multiplies = __builtin_cpu_supports("pclmul");
  const std::size_t most = bytes / 16 * 16;
  if (!multiplies || most < 64) return crc32_fast(data, bytes, before);
  return crc32_fast(data + most, bytes - most, crc32_by_multiplication(data, most, before));
}

#else

std::uint32_t crc32_of_block(const std::byte* data, std::size_t bytes, std::uint32_t before) {
  return crc32_fast(data, bytes, before);
}

#endif

}  // namespace

std::uint32_t crc32_of(std::uint64_t bytes,
                       const std::function<const std::byte*(std::uint64_t begin, std::size_t size)>& block) {
  const auto size = static_cast<std::int64_t>(bytes), parts = (size + crc_part - 1) / crc_part;
  const auto end_of = [&](std::int64_t part) { return std::min((part + 1) * crc_part, size); };
  std::vector<std::uint32_t> crcs(static_cast<std::size_t>(parts));
  in_parallel(parts, [&](std::int64_t part) {
    std::uint32_t crc = 0;
    for (std::int64_t at = part * crc_part; at < end_of(part); at += crc_block) {
      const auto now = static_cast<std::size_t>(std::min(crc_block, end_of(part) - at));
      crc = crc32_of_block(block(static_cast<std::uint64_t>(at), now), now, crc);
    }
    crcs[static_cast<std::size_t>(part)] = crc;
  });
  std::uint32_t crc = 0;
  for (std::int64_t part = 0; part != parts; ++part)
    crc = crc32_combine(crc, crcs[static_cast<std::size_t>(part)],
                        static_cast<std::size_t>(end_of(part) - part * crc_part));
  return crc;
}

}  // namespace weft::weights
