#include <weft/parallel/data_parallel/data_parallel.h>

#include <weft/dist_autograd/engine/internal/make_node.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/mutex.h>

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <exception>

namespace weft::data_parallel::detail {
namespace {

using torch::autograd::variable_list;

// Adds up the gradients of a parameter's copies, for the parameter.
class AddCopies final : public torch::autograd::Node {
 public:
  explicit AddCopies(at::Device device) : device_(device) {}
  std::string name() const override { return "weft::AddCopies"; }

 private:
  variable_list apply(variable_list&& gradients) override {
    at::Tensor sum;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      const at::Tensor here = gradient.to(device_);
      sum = sum.defined() ? sum + here : here;
    }
    return {sum};
  }
  const at::Device device_;
};

}  // namespace

Clones::Clones(std::shared_ptr<torch::nn::Module> module, std::vector<at::Device> devices)
    : devices_(std::move(devices)), threads_(devices_.size() > 1 ? devices_.size() - 1 : 0) {
  if (devices_.empty())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "DataParallel: no devices, expected at least one");
  module->to(devices_.front());
  modules_.push_back(std::move(module));
  for (std::size_t i = 1; i < devices_.size(); ++i) modules_.push_back(modules_.front()->clone(devices_[i]));
}

void Clones::update(std::size_t parts) {
  const torch::nn::Module& own = *modules_.front();
  const auto parameters = own.parameters(), buffers = own.buffers();
  std::vector<std::vector<at::Tensor>> copies;
  for (std::size_t i = 1; i < parts; ++i) {
    torch::nn::Module& clone = *modules_[i];
    const auto of_own = own.modules(), of_clone = clone.modules();  // parents before their children
    for (std::size_t k = 0; k < of_own.size(); ++k)
      if (of_clone[k]->is_training() != of_own[k]->is_training())
        of_clone[k]->train(of_own[k]->is_training());
    copies.push_back(clone.parameters());
    const auto taken = clone.buffers();
    const at::NoGradGuard no_grad;
    for (std::size_t k = 0; k < parameters.size(); ++k)
      copies.back()[k].set_data(parameters[k].detach().to(devices_[i]));
    for (std::size_t k = 0; k < buffers.size(); ++k) {
      at::Tensor buffer = taken[k];
      buffer.set_data(buffers[k].detach().to(devices_[i], buffers[k].scalar_type(), false, true));
    }
  }
  if (!c10::GradMode::is_enabled()) return;
  for (std::size_t k = 0; k < parameters.size(); ++k) {
    if (!parameters[k].requires_grad()) {
      for (auto& copy : copies) copy[k].detach_();
      continue;
    }
    const auto add = dist_autograd::make_node<AddCopies>(parameters[k].device());
    add->set_next_edges({torch::autograd::impl::gradient_edge(parameters[k])});
    for (auto& copy : copies) torch::autograd::set_history(copy[k], add);
  }
}

std::vector<at::Tensor> Clones::scatter(const at::Tensor& input) const {
  std::vector<at::Tensor> parts = input.chunk(static_cast<std::int64_t>(devices_.size()));
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i].to(devices_[i]);
  return parts;
}

at::Tensor Clones::gather(std::vector<at::Tensor> outputs) const {
  for (at::Tensor& output : outputs) {
    output = output.to(devices_.front());
    if (output.dim() == 0) output = output.unsqueeze(0);
  }
  return at::cat(outputs);
}

void Clones::run(std::size_t parts, const std::function<void(std::size_t)>& f) {
  std::vector<std::exception_ptr> errors(parts);
  rpc::Mutex mutex;  // guards left
  rpc::Condition changed;
  std::size_t left = parts - 1;
  const auto run_part = [&](std::size_t part) {
    try {
      f(part);
    } catch (...) {
      errors[part] = std::current_exception();
    }
  };
  const at::ThreadLocalState state;
  for (std::size_t part = 1; part < parts; ++part)
    threads_.post([&, part] {
      {
        const at::ThreadLocalStateGuard as_caller(state);
        run_part(part);
      }
      rpc::MutexLock lock(mutex);
      if (--left == 0) changed.notify_one();
    });
  run_part(0);
  {
    rpc::MutexLock lock(mutex);
    changed.wait(lock, [&] { return left == 0; });
  }
  for (const auto& error : errors)
    if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace weft::data_parallel::detail
