#include <weft/parallel/training/broadcast_state.h>

#include <weft/parallel/training/internal/agreement.h>
#include <weft/parallel/training/internal/optimizer_archive.h>
#include <weft/rpc/core/when_all.h>

#include <c10/core/GradMode.h>

#include <map>
#include <string>

namespace weft::training {

rpc::Future<void> broadcast_tensors(const collectives::Group& group, const std::vector<at::Tensor>& tensors,
                                    int source) {
  std::map<std::pair<at::ScalarType, std::string>, std::vector<at::Tensor>> groups;
  // NCCL needs contiguous memory. These copies are copied back on the same stream.
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const at::Tensor& tensor : tensors) {
    at::Tensor sent = tensor.detach();
    if (!sent.is_cpu() && !sent.is_contiguous()) sent = copies.emplace_back(sent, sent.contiguous()).second;
    groups[{tensor.scalar_type(), tensor.device().str()}].push_back(std::move(sent));
  }
  std::vector<rpc::Future<void>> in_flight;
  for (auto& [kind, same] : groups) {
    auto done = group.broadcast(std::move(same), source);
    // A rank with other dtypes may run another number of collectives.
    if (groups.size() > 1)
      done = std::move(done).then([group](rpc::Result<void>&& result) {
        if (!result.ok()) group.abort("broadcast_tensors failed");
        return std::move(result);
      });
    in_flight.push_back(std::move(done));
  }
  const at::NoGradGuard no_grad;
  for (const auto& [tensor, copy] : copies) tensor.copy_(copy, /*non_blocking=*/true);
  return rpc::when_all(std::move(in_flight));
}

void share_requires_grad(const collectives::Group& group, const std::vector<at::Tensor>& parameters,
                         int source) {
  const at::Tensor flags = at::empty({static_cast<std::int64_t>(parameters.size())}, at::kByte);
  auto* const flag = flags.mutable_data_ptr<std::uint8_t>();
  for (std::size_t i = 0; i < parameters.size(); ++i) flag[i] = parameters[i].requires_grad() ? 1 : 0;
  group.broadcast(flags, source).get();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (parameters[i].requires_grad() != (flag[i] != 0)) parameters[i].set_requires_grad(flag[i] != 0);
}

void broadcast_parameters(const collectives::Group& group,
                          const torch::OrderedDict<std::string, at::Tensor>& tensors, int source) {
  std::vector<std::string> own;
  for (const auto& tensor : tensors) own.push_back(described(tensor.key(), tensor.value()));
  if (const auto difference = difference_of(group.all_gather_object(own).get(), "no further one"))
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "broadcast_parameters: " + *difference + ", expected the same names, dtypes and shapes on all ranks");
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

}  // namespace weft::training
