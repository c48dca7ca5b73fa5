// Sealed memory: a memfd to share with processes that are not trusted, its size fixed for good.
//
// A file that its maker could truncate would kill whoever reads it (SIGBUS). Nothing is touched before it is
// used: what nobody has written costs nothing. Thread-safety: functions.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/transport/shm/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::rpc {

// Zeros. Throws unsupported where the system lacks sealed memfds, resource_exhausted where it has no
// descriptor left. The name is for people who look into /proc.
WEFT_EXPORT Descriptor make_sealed_memory(const char* name, std::size_t bytes);

// The size of one that another process made. Throws protocol_error where it is not what make_sealed_memory()
// makes.
WEFT_EXPORT std::uint64_t expect_sealed_memory(const Descriptor& memory);

[[noreturn]] WEFT_EXPORT void refuse_memory(const std::string& what);  // throws protocol_error

}  // namespace weft::rpc
