#include <weft/parallel/weights/module.h>

#include <weft/parallel/weights/internal/file_sink.h>
#include <weft/parallel/weights/internal/match.h>
#include <weft/parallel/weights/internal/tensor_memory.h>
#include <weft/rpc/core/error.h>

#include <ATen/core/grad_mode.h>

#include <utility>

namespace weft::weights {
namespace {

bool is_without_memory(const at::Tensor& tensor) {
  return tensor.is_meta() || (tensor.has_storage() && !has_memory(tensor));
}

}  // namespace
std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& all : {module.named_parameters(), module.named_buffers()})
    for (const auto& entry : all)
      if (entry.value().defined()) tensors.emplace(entry.key(), entry.value());
  return tensors;
}

LoadReport load_into(torch::nn::Module& module, const Source& source, const LoadOptions& options) {
  const at::NoGradGuard no_history;
  const std::map<std::string, at::Tensor> tensors = tensors_of(module);
  Match found = match(source, forms_of(tensors), options);
  std::vector<std::string> without_memory;
  for (const auto& [to, name] : found.read)
    if (is_without_memory(tensors.at(to))) without_memory.push_back(to);
  expect_no_faults(source, {{"without memory (InitialValues::materialize())", without_memory}});
  expect_same(source, found);
  for (const auto& [to, name] : found.read) source.read(name, tensors.at(to), {}, options.convert);
  return std::move(found.report);
}

void save(const torch::nn::Module& module, Sink& sink, const SaveOptions& options) {
  const std::map<std::string, at::Tensor> tensors = tensors_of(module);
  for (const auto& [name, tensor] : tensors)
    if (is_without_memory(tensor) && !(options.names && options.names(name).empty()))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "'" + name + "' cannot be written: it is without memory");
  save_as(forms_of(tensors), {}, [&](const std::string& name) { return tensors.at(name); }, sink, options);
}

}  // namespace weft::weights
