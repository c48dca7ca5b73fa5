// An embedding table in a C++ program, for trainers that are programs of PyTorch (trainer.py). The trainers
// look rows up, and update them, by torch.distributed.rpc; DistributedDataParallel averages the gradients of
// their other parameters.
//
//   export MASTER_ADDR=127.0.0.1 MASTER_PORT=29600 WORLD_SIZE=3
//   RANK=0 python_embedding & RANK=1 python trainer.py & RANK=2 python trainer.py
#include <torch/library.h>
#include <torch/torch.h>
#include <weft/python/torch_rpc/worker.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <latch>
#include <mutex>
#include <stdexcept>
#include <string>

namespace {

constexpr int rows = 100, width = 8;
constexpr double learning_rate = 0.5;

// Several trainers call its functions at the same time.
class Table {
 public:
  at::Tensor lookup(const at::Tensor& ids) {
    const std::lock_guard lock(mutex_);
    return weights_.index_select(0, ids);
  }
  std::int64_t update(const at::Tensor& ids, const at::Tensor& gradients) {
    const std::lock_guard lock(mutex_);
    weights_.index_add_(0, ids, gradients, -learning_rate);
    return ++updates_;
  }
  std::int64_t updates() {
    const std::lock_guard lock(mutex_);
    return updates_;
  }

 private:
  std::mutex mutex_;
  at::Tensor weights_ = at::zeros({rows, width});
  std::int64_t updates_ = 0;
};

int rank_or_size(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr)
    throw std::invalid_argument(std::string(variable) + " is not set: set RANK and WORLD_SIZE");
  return std::stoi(value);
}

}  // namespace

int main() try {
  const int world_size = rank_or_size("WORLD_SIZE");
  Table table;
  std::latch trainers(world_size - 1);
  // PyTorch's RPC calls only operators of this namespace by their names, and each returns one value.
  torch::Library operators(torch::Library::FRAGMENT, "aten", std::nullopt, __FILE__, __LINE__);
  operators.def("table_lookup(Tensor ids) -> Tensor",
                [&](const at::Tensor& ids) { return table.lookup(ids); });
  operators.def(
      "table_update(Tensor ids, Tensor gradients) -> int",
      [&](const at::Tensor& ids, const at::Tensor& gradients) { return table.update(ids, gradients); });
  operators.def("table_finish() -> int", [&] {
    trainers.count_down();
    return table.updates();
  });
  const weft::torch_rpc::Worker worker("table", static_cast<std::int16_t>(rank_or_size("RANK")), world_size);
  trainers.wait();
  std::printf("the table has taken %lld updates\n", static_cast<long long>(table.updates()));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "python_embedding: %s\n", error.what());
  return 1;
}
