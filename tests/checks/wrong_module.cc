// A model that is not a module of LibTorch.
// expect: weft: DistributedDataParallel expects a torch::nn::Module, or a holder of one
#include <weft/parallel/data_parallel/distributed_data_parallel.h>

struct Plain {
  at::Tensor forward(at::Tensor x) { return x; }
};
struct Net : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x; }
};

at::Tensor run(const weft::collectives::Group& group, const at::Tensor& x) {
  weft::data_parallel::DistributedDataParallel wrong{group, std::make_shared<Plain>()};  // mistake
  weft::data_parallel::DistributedDataParallel ddp{group, std::make_shared<Net>()};
  return ddp.forward(x);
}
