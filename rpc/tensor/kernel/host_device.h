// What a kernel shares with its twin on the CPU: functions that nvcc compiles for both sides and the host's
// compiler for its own. Both sides give equal bits while every operation is rounded by itself: without fused
// multiply-add, flushed denormals or approximate division, which cmake/WeftCuda.cmake sees to.
#pragma once

#ifdef __CUDACC__
#define WEFT_HOST_DEVICE __host__ __device__
#else
#define WEFT_HOST_DEVICE
#endif

// cudaStream_t, for headers that must not need CUDA's.
struct CUstream_st;
