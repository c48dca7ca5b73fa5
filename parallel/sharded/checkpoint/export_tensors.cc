#include <weft/parallel/sharded/checkpoint/export_tensors.h>

#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/parallel/sharded/checkpoint/open_checkpoint.h>

namespace weft::sharded {

void export_tensors(const std::filesystem::path& checkpoint_folder, std::int64_t step,
                    const std::filesystem::path& file, const std::string& prefix) {
  const auto source = open_checkpoint(checkpoint_folder, step);
  weights::TensorForms forms;
  for (const auto& [name, form] : source->tensors())
    if (name.starts_with(prefix)) forms.emplace(name.substr(prefix.size()), form);
  // Not weights::copy(), so that the file has checksums of its blocks.
  dist_optim::write_tensor_file(file, forms, source->notes(),
                                [&](const std::string& name) { return source->view(prefix + name); });
}

}  // namespace weft::sharded
