// The sanitizer under which a test runs. Each one makes the test about ten times as slow.
#pragma once

#include <cstdint>

namespace weft::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool under_asan = false, under_tsan = true;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool under_asan = true, under_tsan = false;
#else
inline constexpr bool under_asan = false, under_tsan = false;
#endif
inline constexpr bool sanitized = under_asan || under_tsan;

// The number of repetitions in a test with one thread, in which TSan cannot find a race.
constexpr std::uint64_t times(std::uint64_t often) { return under_tsan ? (often + 9) / 10 : often; }

}  // namespace weft::test
