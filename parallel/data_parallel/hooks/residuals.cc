#include <weft/parallel/data_parallel/hooks/residuals.h>

#include <weft/parallel/data_parallel/hooks/internal/hook_state.h>
#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>

#include <sstream>

namespace weft::data_parallel {

void Residuals::take(std::size_t parameter, const at::Tensor& sum, const at::Tensor& gradient) {
  const auto found = kept_.find(parameter);
  if (found == kept_.end()) {
    sum.copy_(gradient);
    return;
  }
  const at::Tensor& residual = found->second;
  if (residual.sizes() != gradient.sizes()) {
    std::ostringstream text;
    text << "Residuals: the residual of parameter " << parameter << " has the shape " << residual.sizes()
         << ", expected " << gradient.sizes() << ": load the state of the same module";
    throw rpc::Error(rpc::ErrorKind::invalid_argument, text.str());
  }
  if (!residual.is_same(sum)) sum.copy_(residual);
  sum.add_(gradient);
  kept_.erase(found);
}

void Residuals::keep(std::size_t parameter, const at::Tensor& residual) {
  at::Tensor& kept = kept_[parameter];
  if (kept.defined()) residual.add_(kept);
  kept = residual;
}

void Residuals::save(torch::serialize::OutputArchive& archive) const {
  save_map(archive, "residuals", kept_);
}

void Residuals::load(torch::serialize::InputArchive& archive) { kept_ = load_map(archive, "residuals"); }

}  // namespace weft::data_parallel
