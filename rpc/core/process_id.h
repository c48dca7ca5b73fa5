// ProcessId: identifies the process of an agent. Agents on the same host use it to detect whether the process
// still exists.
//
// `host` is a hash of the host's boot id and of the namespace of process numbers. `started` is the start
// time, which distinguishes a process from a later process with the same number. `network` is a hash of the
// host's boot id and of the network namespace. Thread-safety: values, and functions without state.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>

namespace weft::rpc {

struct ProcessId {
  std::uint64_t host = 0;  // 0: unknown
  std::uint32_t number = 0;
  std::uint64_t started = 0;
  std::uint64_t network = 0;  // 0: unknown

  // Whether both processes are on the same host. false if a host is unknown.
  bool is_on_host_of(const ProcessId& other) const { return host != 0 && host == other.host; }
  // Whether both processes use the same network addresses. false if a network is unknown.
  bool shares_network_of(const ProcessId& other) const { return network != 0 && network == other.network; }
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

// The ProcessId of the calling process. `host` and `network` are 0 if the system does not
// provide the data.
WEFT_EXPORT ProcessId own_process();

// A descriptor that becomes readable when the process ends; the caller closes it. -1: the process has ended.
// -2: unknown, because the system call failed.
WEFT_EXPORT int open_process(const ProcessId& process);

}  // namespace weft::rpc
