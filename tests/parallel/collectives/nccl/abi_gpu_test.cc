// Compares weft's declarations of NCCL's C interface with NCCL's header, at compile time where this is
// possible.
#include <weft/parallel/collectives/nccl/internal/api.h>

#include <gtest/gtest.h>
#include <nccl.h>

#include <type_traits>
#include <utility>

namespace weft::collectives::nccl::testing {
namespace abi_gpu_test {

// True if a call passes both types in the same way: equal size, and both are pointers, numbers or structs.
template <class Ours, class Theirs>
constexpr bool alike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
    std::is_class_v<Ours> == std::is_class_v<Theirs> &&
    std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs>;

template <class R, class... A, class S, class... B>
consteval bool same(std::type_identity<std::function<R(A...)>>, S (*)(B...)) {
  if constexpr (sizeof...(A) != sizeof...(B)) {
    return false;
  } else {
    return alike<R, S> && (alike<A, B> && ...);
  }
}
#define WEFT_SAME(ours, theirs) \
  static_assert(same(std::type_identity<decltype(Api::ours)>{}, static_cast<decltype(&theirs)>(nullptr)))

WEFT_SAME(get_unique_id, ncclGetUniqueId);
WEFT_SAME(comm_init_rank_config, ncclCommInitRankConfig);
WEFT_SAME(comm_finalize, ncclCommFinalize);
WEFT_SAME(comm_destroy, ncclCommDestroy);
WEFT_SAME(comm_abort, ncclCommAbort);
WEFT_SAME(comm_get_async_error, ncclCommGetAsyncError);
WEFT_SAME(get_error_string, ncclGetErrorString);
WEFT_SAME(get_last_error, ncclGetLastError);
WEFT_SAME(group_start, ncclGroupStart);
WEFT_SAME(group_end, ncclGroupEnd);
WEFT_SAME(all_reduce, ncclAllReduce);
WEFT_SAME(reduce, ncclReduce);
WEFT_SAME(broadcast, ncclBroadcast);
WEFT_SAME(all_gather, ncclAllGather);
WEFT_SAME(reduce_scatter, ncclReduceScatter);
WEFT_SAME(send, ncclSend);
WEFT_SAME(recv, ncclRecv);
WEFT_SAME(red_op_create_premul_sum, ncclRedOpCreatePreMulSum);
WEFT_SAME(red_op_destroy, ncclRedOpDestroy);

#define WEFT_EQUAL(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs))

WEFT_EQUAL(Result::success, ncclSuccess);
WEFT_EQUAL(Result::unhandled_cuda_error, ncclUnhandledCudaError);
WEFT_EQUAL(Result::system_error, ncclSystemError);
WEFT_EQUAL(Result::internal_error, ncclInternalError);
WEFT_EQUAL(Result::invalid_argument, ncclInvalidArgument);
WEFT_EQUAL(Result::invalid_usage, ncclInvalidUsage);
WEFT_EQUAL(Result::remote_error, ncclRemoteError);
WEFT_EQUAL(Result::in_progress, ncclInProgress);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
WEFT_EQUAL(Result::timeout, ncclTimeout);
#endif
WEFT_EQUAL(DataType::int8, ncclInt8);
WEFT_EQUAL(DataType::uint8, ncclUint8);
WEFT_EQUAL(DataType::int32, ncclInt32);
WEFT_EQUAL(DataType::uint32, ncclUint32);
WEFT_EQUAL(DataType::int64, ncclInt64);
WEFT_EQUAL(DataType::uint64, ncclUint64);
WEFT_EQUAL(DataType::float16, ncclFloat16);
WEFT_EQUAL(DataType::float32, ncclFloat32);
WEFT_EQUAL(DataType::float64, ncclFloat64);
WEFT_EQUAL(DataType::bfloat16, ncclBfloat16);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0)
WEFT_EQUAL(DataType::float8_e4m3, ncclFloat8e4m3);
WEFT_EQUAL(DataType::float8_e5m2, ncclFloat8e5m2);
#endif
WEFT_EQUAL(RedOp::sum, ncclSum);
WEFT_EQUAL(RedOp::product, ncclProd);
WEFT_EQUAL(RedOp::max, ncclMax);
WEFT_EQUAL(RedOp::min, ncclMin);
WEFT_EQUAL(RedOp::avg, ncclAvg);
WEFT_EQUAL(Residence::device, ncclScalarDevice);
WEFT_EQUAL(Residence::host_immediate, ncclScalarHostImmediate);
WEFT_EQUAL(undefined, NCCL_CONFIG_UNDEF_INT);
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && alignof(UniqueId) == alignof(ncclUniqueId));

// Our struct is the beginning of NCCL's, or NCCL's is the beginning of ours.
#define WEFT_AT(ours, theirs) static_assert(offsetof(Config, ours) == offsetof(ncclConfig_t, theirs))
WEFT_AT(size, size);
WEFT_AT(magic, magic);
WEFT_AT(version, version);
WEFT_AT(blocking, blocking);
WEFT_AT(cga_cluster_size, cgaClusterSize);
WEFT_AT(min_ctas, minCTAs);
WEFT_AT(max_ctas, maxCTAs);
WEFT_AT(net_name, netName);
WEFT_AT(split_share, splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
WEFT_AT(traffic_class, trafficClass);
WEFT_AT(comm_name, commName);
WEFT_AT(collnet_enable, collnetEnable);
WEFT_AT(cta_policy, CTAPolicy);
WEFT_AT(shrink_share, shrinkShare);
WEFT_AT(nvls_ctas, nvlsCTAs);
#endif

TEST(NcclAbi, TheConfigsMagicIsNccls) {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(Config{}.magic, theirs.magic);
  RecordProperty("header", NCCL_VERSION_CODE);
}

}  // namespace abi_gpu_test
}  // namespace weft::collectives::nccl::testing
