// DataParallel: runs a module on several devices, or several threads of the CPU, of one process.
//
//   data_parallel::DataParallel model{module, {at::Device("cuda:0"), at::Device("cuda:1")}};
//   data_parallel::DataParallel model{module, std::vector(4, at::Device(at::kCPU))};   // four threads
//   torch::nn::functional::cross_entropy(model.forward(images), labels).backward();
//
// Each forward splits its inputs along the first dimension, runs the parts at the same time, and joins the
// outputs on the first device. Backward adds the gradients of all parts to those of the module's parameters.
// The module itself runs the first part, and the other parts run on clones. Therefore only the first part
// updates the module's buffers, such as the running statistics of a batch norm. Before each forward, the
// clones get the module's parameters and buffers, and the mode of each of its submodules; clones on the
// module's own device share the memory of its parameters. Frozen parameters are frozen in the clones, too.
//
// The backward of all parts on one device runs on one thread, because LibTorch's engine has one thread for
// each device. To use all cores, or several hosts, train with DistributedDataParallel, one process for each
// core or device. The module must implement clone() (torch::nn::Cloneable). Not thread-safe.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/handler_pool.h>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace weft::data_parallel {

namespace detail {

// The part of a DataParallel that does not depend on the module's type.
class WEFT_EXPORT Clones {
 public:
  Clones(std::shared_ptr<torch::nn::Module> module, std::vector<at::Device> devices);

  const std::vector<std::shared_ptr<torch::nn::Module>>& modules() const {
    return modules_;
  }  // the given module first
  const std::vector<at::Device>& devices() const { return devices_; }

  // Copies the module's parameters, buffers and modes to the clones of the first `parts` parts. Call it
  // before each forward.
  void update(std::size_t parts);
  // The parts of an input, at most one for each device, on their devices.
  std::vector<at::Tensor> scatter(const at::Tensor& input) const;
  at::Tensor gather(std::vector<at::Tensor> outputs) const;
  // Runs f(part) for all parts at the same time, with this thread's LibTorch state; the first part runs on
  // this thread. When all parts have returned, rethrows the error of the first part that failed.
  void run(std::size_t parts, const std::function<void(std::size_t)>& f);

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<at::Device> devices_;
  rpc::HandlerPool threads_;
};

}  // namespace detail

template <class Module>
class DataParallel {
 public:
  // devices: one for each part; not empty. Moves the module to the first device.
  DataParallel(std::shared_ptr<Module> module, std::vector<at::Device> devices)
      : clones_(std::move(module), std::move(devices)) {}
  // For a module holder, such as torch::nn::Linear or torch::nn::Sequential.
  template <class Holder>
    requires std::is_base_of_v<torch::nn::ModuleHolder<Module>, Holder>
  DataParallel(const Holder& module, std::vector<at::Device> devices)
      : DataParallel(module.ptr(), std::move(devices)) {}

  // The module on the first device, which has the parameters.
  Module& module() const { return static_cast<Module&>(*clones_.modules().front()); }

  // The inputs must have the same size in the first dimension. If the module's output is a scalar, the result
  // is a vector with one element for each part.
  template <class... Tensors>
  at::Tensor forward(const at::Tensor& input, const Tensors&... further) {
    const std::vector<std::vector<at::Tensor>> inputs{clones_.scatter(input), clones_.scatter(further)...};
    const std::size_t parts = inputs.front().size();
    clones_.update(parts);
    std::vector<at::Tensor> outputs(parts);
    clones_.run(parts, [&](std::size_t part) {
      auto& module = static_cast<Module&>(*clones_.modules()[part]);
      outputs[part] = [&]<std::size_t... i>(std::index_sequence<i...>) -> at::Tensor {
        return module.forward(inputs[i].at(part)...);
      }(std::make_index_sequence<1 + sizeof...(Tensors)>());
    });
    return clones_.gather(std::move(outputs));
  }

 private:
  detail::Clones clones_;
};

template <class Holder>
DataParallel(const Holder&, std::vector<at::Device>) -> DataParallel<typename Holder::ContainedType>;

}  // namespace weft::data_parallel
