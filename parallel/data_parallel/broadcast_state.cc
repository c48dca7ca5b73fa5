#include <weft/parallel/data_parallel/broadcast_state.h>

#include <weft/parallel/data_parallel/optimizer_archive.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>
#include <map>
#include <string>

namespace weft::data_parallel {
namespace {

// Views the memory of a tensor without gaps as one dimension. All ranks have the same strides, so the
// elements correspond.
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor.detach().as_strided({tensor.numel()}, {1})
                                               : tensor.detach();
}

}  // namespace

rpc::Future<void> broadcast_tensors(const collectives::Group& group, const std::vector<at::Tensor>& tensors,
                                    int source) {
  std::map<std::pair<at::ScalarType, std::string>, std::vector<at::Tensor>> groups;
  for (const at::Tensor& tensor : tensors)
    groups[{tensor.scalar_type(), tensor.device().str()}].push_back(flat(tensor));
  std::vector<rpc::Future<void>> in_flight;
  for (auto& [kind, same] : groups) in_flight.push_back(group.broadcast(std::move(same), source));
  return rpc::when_all(std::move(in_flight));
}

void broadcast_parameters(const collectives::Group& group,
                          const torch::OrderedDict<std::string, at::Tensor>& tensors, int source) {
  const auto all = group.all_gather_object(tensors.keys()).get();
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [first, other] =
        std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end());
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "broadcast_parameters: rank 0 has " +
                         (first == all[0].end() ? "no further one" : *first) + ", rank " +
                         std::to_string(rank) + " has " +
                         (other == all[rank].end() ? "no further one" : *other) +
                         ", expected the same names on all ranks");
  }
  broadcast_tensors(group, tensors.values(), source).get();
}

void broadcast_parameters(const collectives::Group& group, const torch::nn::Module& module, int source) {
  torch::OrderedDict<std::string, at::Tensor> tensors = module.named_parameters();
  for (const auto& buffer : module.named_buffers()) tensors.insert(buffer.key(), buffer.value());
  broadcast_parameters(group, tensors, source);
}

void broadcast_optimizer_state(const collectives::Group& group, torch::optim::Optimizer& optimizer,
                               int source) {
  std::string state;
  if (group.rank() == source) state = archive_of(optimizer);
  state = group.broadcast_object(state, source).get();
  if (group.rank() != source) load_archive(state, optimizer);
}

}  // namespace weft::data_parallel
