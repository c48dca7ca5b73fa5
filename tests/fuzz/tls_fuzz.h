// Fuzzing of TLS: what one input does to a handshake and what follows it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::test {

// Two sides talk over a wire that somebody holds in his hands: the input says how many bytes he lets through,
// and which he changes, drops, repeats, swaps for the other direction's, or makes up. Nobody may crash or
// spin, and what a side receives is what the other sent, or the beginning of it. Aborts where that is not so;
// 0.
int fuzz_tls_handshake(const std::uint8_t* data, std::size_t size);

}  // namespace weft::test
