// Fuzzing of TLS: the effect of one input on a handshake and on the connection after it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::test {

// Two sides talk over a wire that an attacker controls: the input states how many bytes the attacker passes
// on, and which ones the attacker changes, drops, repeats, swaps with the other direction's, or invents.
// Neither side may crash or spin, and each side receives the bytes that the other sent, or the beginning of
// them. Aborts otherwise; returns 0.
int fuzz_tls_handshake(const std::uint8_t* data, std::size_t size);

}  // namespace weft::test
