// Requirements of the tests of NCCL itself: its library, and GPUs. `why` states a missing one.
#pragma once

#include <weft/parallel/collectives/nccl/internal/api.h>
#include <weft/rpc/core/error.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <string>

namespace weft::collectives::nccl::testing {

// WEFT_NCCL: another library than LibTorch's.
inline std::shared_ptr<const Api> library(std::string& why) {
  try {
    const char* path = std::getenv("WEFT_NCCL");
    return Api::load(path != nullptr ? path : "");
  } catch (const rpc::Error& error) {
    why = error.what();
    return nullptr;
  }
}

inline int gpus(std::string& why) {
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    why = dlerror();
    return 0;
  }
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount();
}

}  // namespace weft::collectives::nccl::testing
