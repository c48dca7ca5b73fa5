// A box of a tensor is read as runs: the elements of a range of rows that are in a range of columns, if the
// tensor is seen as a matrix whose columns are the indices of the last dimensions.
#include <weft/parallel/sharded/checkpoint/open_checkpoint.h>

#include <weft/parallel/sharded/checkpoint/checkpoint_folder.h>
#include <weft/parallel/sharded/checkpoint/slice_file.h>
#include <weft/parallel/weights/internal/assembled_source.h>
#include <weft/rpc/core/mutex.h>

#include <algorithm>
#include <deque>

namespace weft::sharded {
namespace {

using weights::Box;

class CheckpointSource final : public weights::AssembledSource {
 public:
  CheckpointSource(const CheckpointFolder& folder, std::int64_t step) : folder_(folder.of_step(step)) {
    description_ = folder_.string();
    Manifest manifest = folder.manifest(step);
    for (std::size_t rank = 0; rank < manifest.files.size(); ++rank) {
      readers_.emplace_back(CheckpointFolder::file_of(folder_, rank, manifest.files.size()),
                            manifest.files[rank]);
      for (const auto& [name, slice] : readers_.back().slices())
        tensors_.try_emplace(name, weights::TensorForm{slice.dtype, slice.sizes});
    }
    notes_ = std::move(manifest.notes);
  }

 protected:
  void fill(const std::string& name, const Box& box, const at::Tensor& values) const override {
    const std::vector<std::int64_t>& whole = form(name).sizes;
    std::size_t columns = whole.size();  // the last dimension of which the box has a part
    while (columns != 0 && box.sizes[columns - 1] == whole[columns - 1]) --columns;
    std::size_t rows = 0;  // the first dimension of which the box has several indices
    while (rows < whole.size() && box.sizes[rows] == 1) ++rows;
    bool consecutive = true;  // the rows
    for (std::size_t dim = rows + 1; dim + 1 < columns; ++dim)
      consecutive = consecutive && box.sizes[dim] == whole[dim];
    if (!consecutive) {
      Box one = box;
      one.sizes[rows] = 1;
      for (std::int64_t i = 0; i < box.sizes[rows]; ++i, ++one.offsets[rows])
        fill(name, one, values.narrow(static_cast<std::int64_t>(rows), i, 1));
      return;
    }
    Runs runs;
    std::int64_t row = 0;  // the first one
    for (std::size_t dim = 0; dim < whole.size(); ++dim) {
      if (dim + 1 < columns) {
        row = row * whole[dim] + box.offsets[dim];
      } else {
        runs.first = runs.first * whole[dim] + box.offsets[dim];
        runs.length *= box.sizes[dim];
        runs.distance *= whole[dim];
      }
    }
    const rpc::MutexLock lock(mutex_);
    SliceTarget target(name, {whole, row * runs.length, values.view({-1}), runs});
    for (SliceFileReader& reader : readers_) target.fill_from(reader);
    target.expect_filled(folder_);
  }

 private:
  const std::filesystem::path folder_;  // of the step
  mutable rpc::Mutex mutex_;
  mutable std::deque<SliceFileReader> readers_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<weights::Source> open_checkpoint(const std::filesystem::path& folder, std::int64_t step) {
  return std::make_shared<CheckpointSource>(CheckpointFolder(folder), step);
}

std::shared_ptr<weights::Source> find_checkpoint(const std::filesystem::path& folder) {
  std::error_code ignored;  // a path that cannot be examined is no checkpoint
  if (!std::filesystem::is_directory(folder, ignored)) return nullptr;
  if (const auto steps = CheckpointFolder(folder).steps(); !steps.empty())
    return open_checkpoint(folder, steps.back());
  std::filesystem::path own = std::filesystem::absolute(folder).lexically_normal();
  if (!own.has_filename()) own = own.parent_path();  // it ends in '/'
  for (const std::int64_t step : CheckpointFolder(own.parent_path()).steps())
    if (CheckpointFolder(own.parent_path()).of_step(step) == own)
      return open_checkpoint(own.parent_path(), step);
  return nullptr;
}

}  // namespace weft::sharded
