#include <weft/parallel/data_parallel/hooks/internal/hook_state.h>

#include <weft/rpc/core/error.h>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

namespace weft::data_parallel {

namespace {

c10::IValue entry_of(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  if (!archive.try_read(key, value))
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "load: the archive has no entry '" + key + "', expected the state of a hook");
  return value;
}

}  // namespace

void save_number(torch::serialize::OutputArchive& archive, const std::string& key, std::int64_t number) {
  archive.write(key, c10::IValue(number));
}

std::int64_t load_number(torch::serialize::InputArchive& archive, const std::string& key) {
  return entry_of(archive, key).toInt();
}

void save_map(torch::serialize::OutputArchive& archive, const std::string& key,
              const std::map<std::size_t, at::Tensor>& tensors) {
  c10::Dict<std::int64_t, at::Tensor> dict;
  for (const auto& [index, tensor] : tensors)
    dict.insert(static_cast<std::int64_t>(index), tensor.clone(at::MemoryFormat::Contiguous));
  archive.write(key, c10::IValue(dict));
}

std::map<std::size_t, at::Tensor> load_map(torch::serialize::InputArchive& archive, const std::string& key) {
  std::map<std::size_t, at::Tensor> tensors;
  for (const auto& entry : entry_of(archive, key).toGenericDict())
    tensors.emplace(static_cast<std::size_t>(entry.key().toInt()), entry.value().toTensor());
  return tensors;
}

}  // namespace weft::data_parallel
