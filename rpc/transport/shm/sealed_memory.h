// Sealed memory: a memfd of fixed size, to share with processes that are not trusted.
//
// Without the seal, a process could truncate the file and so kill its readers (SIGBUS). Pages are allocated
// when they are first written, so unused memory costs nothing. Thread-safety: functions without state.
#pragma once

#include <weft/rpc/core/descriptor.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::rpc {

// Creates zeroed memory. Throws unsupported if the system lacks sealed memfds, resource_exhausted if it has
// no descriptor left. /proc shows `name`.
WEFT_EXPORT Descriptor make_sealed_memory(const char* name, std::size_t bytes);

// Returns the size of memory that another process created. Throws protocol_error if the memory was not
// created as by make_sealed_memory().
WEFT_EXPORT std::uint64_t expect_sealed_memory(const Descriptor& memory);

[[noreturn]] WEFT_EXPORT void refuse_memory(const std::string& what);  // throws protocol_error

}  // namespace weft::rpc
