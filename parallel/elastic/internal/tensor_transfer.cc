#include <weft/parallel/elastic/internal/tensor_transfer.h>

#include <weft/rpc/core/when_all.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace weft::elastic::detail {
namespace {

constexpr std::uint64_t transfer_tag = 0x656c617374696301;  // no program uses it

// The parts of a contiguous tensor that are sent as messages. Memory for messages of this size is used again,
// whereas a message of a large tensor needs as much new memory.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
  constexpr std::int64_t bytes = 16 << 20;
  return tensor.view(-1).split(std::max<std::int64_t>(1, bytes / tensor.element_size()));
}

struct TensorTransfer {
  std::vector<std::pair<at::Tensor, at::Tensor>> received;  // the tensor, and its values in the host's memory
  std::vector<rpc::Future<void>> in_flight;
};

}  // namespace

std::function<void()> transfer_tensors(const collectives::Group& group,
                                       const std::vector<Transfer>& transfers,
                                       const std::vector<at::Tensor>& tensors) {
  const auto transfer = std::make_shared<TensorTransfer>();
  const auto limit = group.options().timeout;  // of the transfer, which may take long
  for (const Transfer& each : transfers) {
    if (each.from == group.rank()) {
      for (const at::Tensor& tensor : tensors)
        for (const at::Tensor& part : parts_of(tensor.detach().cpu().contiguous()))
          transfer->in_flight.push_back(group.send(part, each.to, transfer_tag, limit));
    } else if (each.to == group.rank()) {
      for (const at::Tensor& tensor : tensors) {
        const at::Tensor values =
            at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
        transfer->received.emplace_back(tensor.detach(), values);
        for (const at::Tensor& part : parts_of(values))
          transfer->in_flight.push_back(group.recv(part, each.from, transfer_tag, limit));
      }
    }
  }
  if (transfer->in_flight.empty()) return {};
  return [transfer] {
    rpc::when_all(std::move(transfer->in_flight)).get();
    const c10::NoGradGuard no_grad;
    for (const auto& [tensor, values] : transfer->received) tensor.copy_(values);
  };
}

}  // namespace weft::elastic::detail
