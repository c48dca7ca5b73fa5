// FullyShardedDataParallel: trains a module whose parameters, gradients and optimizer state are split over
// the ranks of a group, each rank with its own batches (ZeRO-3 and ZeRO-2; Rajbhandari et al. 2020).
//
//   auto group = collectives::Group::create(agent).get();
//   auto model = std::make_shared<Gpt>();     // with a torch::nn::Sequential `layers`
//   sharded::FullyShardedDataParallel fsdp{group, model, {.block = "layers.*"}};
//   torch::optim::AdamW optimizer(fsdp.parameters(), torch::optim::AdamWOptions(3e-4));
//   ...
//   optimizer.zero_grad();
//   torch::cross_entropy_loss(fsdp.forward(tokens), targets).backward();
//   fsdp.clip_grad_norm(1.0);
//   optimizer.step();
//
// The parameters of each block are a unit; the parameters outside of all blocks are another unit. Each rank
// has an equal part of each unit. The whole parameters of a unit are gathered for its forward and again for
// its backward, while the previous unit computes. When a unit's backward has completed, its gradients are
// averaged over the ranks and split; gradients of several backwards add up. At other times the module's
// parameters have no elements, and a use of them is an error. The parameters stay the same tensor objects. A
// gradient that no rank computes is unchanged.
//
// All ranks must run the same blocks in the same order. The ranks compare the order after each forward. If it
// differs, backward fails with failed_precondition. If a rank runs fewer blocks, or fewer iterations, the
// other ranks wait until the group's timeout. The ranks may use different parameters of a block. The module's
// parameters get no gradients: pass parameters() of this object to optimizers and to clipping. Buffers are
// not synchronized. If a forward throws, or a backward fails after its first block has begun, the groups are
// aborted with a text that names the rank. A dist_autograd::Pass, re-entrant checkpoints and create_graph are
// not supported. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/sharded/sharded_module.h>

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

namespace weft::sharded {

template <class Module>
class FullyShardedDataParallel : public ShardedModule {
 public:
  FullyShardedDataParallel(const collectives::Group& group, std::shared_ptr<Module> module,
                           Options options = {})
      : ShardedModule(group, module, std::move(options)), module_(std::move(module)) {}
  // For a module holder, such as torch::nn::Linear or torch::nn::Sequential.
  template <class Holder>
    requires std::is_base_of_v<torch::nn::ModuleHolder<Module>, Holder>
  FullyShardedDataParallel(const collectives::Group& group, const Holder& module, Options options = {})
      : FullyShardedDataParallel(group, module.ptr(), std::move(options)) {}

  Module& module() const { return *module_; }  // the module given to the constructor

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    return run([&](Module& module) {
      if (!input_type()) return module.forward(std::forward<Arguments>(arguments)...);
      return data_parallel::detail::forward_in(*input_type(), module, std::forward<Arguments>(arguments)...);
    });
  }
  // Runs function(module) as the forward, for other methods of the module:
  //   fsdp.run([&](Gpt& gpt) { return gpt.loss(tokens, targets); }).backward();
  // Mixed precision does not convert the tensors that the function captures.
  template <class Function>
  auto run(Function function) {
    const ForwardScope scope(*this);
    auto output = function(*module_);
    static_assert(data_parallel::detail::shows_tensors<decltype(output)>(),
                  "the module's output is not made of tensors: give a struct WEFT_CODEC, or return a tuple");
    tensor::for_each_tensor(output, [this](const at::Tensor& each) { watch(each); });
    end_forward();
    return output;
  }

 private:
  const std::shared_ptr<Module> module_;
};

template <class Holder>
FullyShardedDataParallel(collectives::Group, const Holder&)
    -> FullyShardedDataParallel<typename Holder::ContainedType>;
template <class Holder>
FullyShardedDataParallel(collectives::Group, const Holder&, Options)
    -> FullyShardedDataParallel<typename Holder::ContainedType>;

}  // namespace weft::sharded
