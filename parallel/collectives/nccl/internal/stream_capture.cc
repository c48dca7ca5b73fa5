#include <weft/parallel/collectives/nccl/internal/stream_capture.h>

#include <dlfcn.h>

namespace weft::collectives::nccl {

StreamCapture StreamCapture::of_cuda() {
  void* runtime = nullptr;
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"})  // only LibTorch's own
    if (runtime == nullptr) runtime = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  if (runtime == nullptr) return {};

  StreamCapture capture;
  // cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus*): 0 means that no capture is
  // active
  if (void* symbol = dlsym(runtime, "cudaStreamIsCapturing"))
    capture.captures = [ask = reinterpret_cast<int (*)(Stream, int*)>(symbol)](Stream stream) {
      int status = 0;
      return ask(stream, &status) == 0 && status != 0;
    };
  // cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*)
  if (void* symbol = dlsym(runtime, "cudaThreadExchangeStreamCaptureMode"))
    capture.exchange = [set = reinterpret_cast<int (*)(int*)>(symbol)](int& mode) { (void)set(&mode); };
  return capture;
}

}  // namespace weft::collectives::nccl
