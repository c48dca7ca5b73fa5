// Memory of a GPU by CUDA's runtime alone, for tests of weft's own kernels; and whether there is a GPU.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>

namespace weft::test {

// Returns why no kernel can run on this machine, or an empty string if one can.
inline std::string no_gpu() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count > 0 ? "" : "there is no GPU";
}

// A copy of bytes on the current device. Not copyable.
class GpuMemory {
 public:
  explicit GpuMemory(std::span<const std::byte> bytes) : size_(bytes.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ + 1), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, bytes.data(), size_, cudaMemcpyHostToDevice), cudaSuccess);
  }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory() { cudaFree(data_); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  // Waits for the device.
  void read(std::span<std::byte> bytes) const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, size_, cudaMemcpyDeviceToHost), cudaSuccess);
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

}  // namespace weft::test
