// NCCL's C interface as far as weft uses it: its values and structs.
//
// Declared here instead of included from nccl.h, so that everything is compiled without a CUDA toolkit.
// Numbers and layouts are NCCL's; tests/parallel/collectives/nccl/abi_gpu_test.cc compares them with the
// header, if the `cuda` preset finds one. Streams are opaque: a Stream is a cudaStream_t. Values.
#pragma once

#include <array>
#include <climits>
#include <cstddef>

namespace weft::collectives::nccl {

struct Comm;           // ncclComm
using Stream = void*;  // cudaStream_t

// ncclResult_t. Calls of a non-blocking communicator may return in_progress; all other results except success
// are failures (error_of() in api.h).
enum class Result : int {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
  timeout = 8,  // from 2.30 on
};

// ncclDataType_t: the type of an element.
enum class DataType : int {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
  float8_e4m3 = 10,  // from 2.24 on, like the next
  float8_e5m2 = 11,
};

// Larger values: operators that a communicator has created for itself (premul_sum).
enum class RedOp : int { sum = 0, product = 1, max = 2, min = 3, avg = 4 };

enum class Residence : int { device = 0, host_immediate = 1 };  // of premul_sum's factor

// ncclUniqueId: identifies a communicator while its ranks create it. One rank creates it and sends it to the
// others.
struct UniqueId {
  std::array<char, 128> bytes{};
  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

// NCCL_CONFIG_UNDEF_INT: NCCL selects the value.
inline constexpr int undefined = INT_MIN;

// ncclConfig_t as in NCCL 2.27. A later library sets its additional fields itself. An earlier library does
// not read the fields that it does not have.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 22700;
  int blocking = 0;
  int cga_cluster_size = undefined;
  int min_ctas = undefined;
  int max_ctas = undefined;
  const char* net_name = nullptr;
  int split_share = undefined;
  int traffic_class = undefined;
  const char* comm_name = nullptr;
  int collnet_enable = undefined;
  int cta_policy = undefined;
  int shrink_share = undefined;
  int nvls_ctas = undefined;
};

}  // namespace weft::collectives::nccl
