#include <weft/parallel/sharded/checkpoint/export_tensors.h>

#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/parallel/sharded/checkpoint/checkpoint_folder.h>
#include <weft/parallel/sharded/checkpoint/slice_file.h>

#include <ATen/ops/empty.h>

#include <deque>
#include <map>

namespace weft::sharded {

void export_tensors(const std::filesystem::path& checkpoint_folder, std::int64_t step,
                    const std::filesystem::path& file, const std::string& prefix) {
  const CheckpointFolder folder(checkpoint_folder);
  const Manifest manifest = folder.manifest(step);
  const auto checkpoint = folder.of_step(step);
  std::deque<SliceFileReader> readers;
  std::map<std::string, dist_optim::TensorForm> forms;
  for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
    readers.emplace_back(CheckpointFolder::file_of(checkpoint, rank, manifest.files.size()),
                         manifest.files[rank]);
    for (const auto& [name, slice] : readers.back().slices())
      if (name.starts_with(prefix))
        forms.try_emplace(name.substr(prefix.size()), dist_optim::TensorForm{slice.dtype, slice.sizes});
  }
  dist_optim::write_tensor_file(file, forms, manifest.notes, [&](const std::string& name) {
    const auto& form = forms.at(name);
    const at::Tensor whole = at::empty(form.sizes, at::TensorOptions(form.dtype));
    SliceTarget target(prefix + name, {form.sizes, 0, whole.view({-1})});
    for (SliceFileReader& reader : readers) target.fill_from(reader);
    target.expect_filled(checkpoint);
    return whole;
  });
}

}  // namespace weft::sharded
