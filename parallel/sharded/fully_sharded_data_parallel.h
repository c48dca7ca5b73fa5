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
// A rank has an equal part of each unit's parameters: of each block, and of what no block has. Whole
// parameters are gathered for a unit's forward and again for its backward, the next unit's while one
// computes. Gradients are averaged over the ranks and split as soon as a unit's backward has ended; gradients
// of several backwards add up. Outside of this the elements of the module's parameters are not there, and a
// use of them is an error. The parameters keep their identity. A gradient that no rank computes stays as it
// is.
//
// All ranks run the same blocks in the same order: the ranks compare it after each forward, and backward
// fails with failed_precondition if it differs. A rank that runs fewer blocks, or fewer iterations, lets the
// others wait for the group's timeout. The ranks may use different parameters of a block. The module's own
// parameters get no gradients: give optimizers and clipping those of this object. Buffers are each rank's
// own. If backward fails after its first block has begun, the groups are aborted with a text that names the
// rank. Not in a dist_autograd::Pass; not with re-entrant checkpoints or create_graph. Not thread-safe.
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
  // Of a module holder: torch::nn::Linear, torch::nn::Sequential.
  template <class Holder>
    requires std::is_base_of_v<torch::nn::ModuleHolder<Module>, Holder>
  FullyShardedDataParallel(const collectives::Group& group, const Holder& module, Options options = {})
      : FullyShardedDataParallel(group, module.ptr(), std::move(options)) {}

  Module& module() const { return *module_; }  // as it was given

  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    const ForwardScope scope(*this);
    auto output = run(std::forward<Arguments>(arguments)...);
    static_assert(data_parallel::detail::shows_tensors<decltype(output)>(),
                  "the module's output is not made of tensors: give a struct WEFT_CODEC, or return a tuple");
    tensor::for_each_tensor(output, [this](const at::Tensor& each) { watch(each); });
    end_forward();
    return output;
  }

 private:
  template <class... Arguments>
  auto run(Arguments&&... arguments) {
    if (!input_type()) return module_->forward(std::forward<Arguments>(arguments)...);
    std::tuple<data_parallel::detail::Converted<Arguments>...> converted(
        data_parallel::detail::convert(std::forward<Arguments>(arguments), *input_type())...);
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return module_->forward(std::forward<Arguments>(std::get<i>(converted))...);
    }(std::index_sequence_for<Arguments...>());
  }

  const std::shared_ptr<Module> module_;
};

template <class Holder>
FullyShardedDataParallel(collectives::Group, const Holder&)
    -> FullyShardedDataParallel<typename Holder::ContainedType>;
template <class Holder>
FullyShardedDataParallel(collectives::Group, const Holder&, Options)
    -> FullyShardedDataParallel<typename Holder::ContainedType>;

}  // namespace weft::sharded
