// CheckpointFolder: the complete checkpoints in a folder, and the one that is being written.
//
//   FOLDER/step-000000120/rank-0-of-4.safetensors     slices (slice_file.h)
//   FOLDER/step-000000120/manifest.safetensors        no tensors; the notes, and the checksum of each file
//   FOLDER/step-000000140.part-5e0c1f3a9b7d2468/...   a checkpoint that is not complete
//   FOLDER/writer.lock                                locked by the job that writes
//
// A folder step-N with a manifest is a complete checkpoint. complete() writes the manifest and gives the
// folder this name, when all ranks have written and synced their files. Each attempt writes into a new
// folder, so that a rank of an earlier job that is still writing cannot change a later checkpoint. To remove
// a checkpoint, rank 0 renames it first, so that it is either complete or no longer listed.
//
// Only rank 0 changes the folder itself. Errors: failed_precondition and resource_exhausted, which name the
// path. Const functions that read are thread-safe; one thread at a time may call the other functions.
#pragma once

#include <weft/parallel/weights/checked_file.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

// The contents of the manifest of a complete checkpoint.
struct Manifest {
  std::int64_t step = 0;
  std::vector<std::uint32_t> files;  // checksums, by rank
  std::map<std::string, std::string> notes;
};

class WEFT_EXPORT CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::vector<std::int64_t> steps() const;  // of the complete checkpoints, ascending
  // The folder of a step, and its manifest. Errors: those of read_tensor_file().
  std::filesystem::path of_step(std::int64_t step) const;
  Manifest manifest(std::int64_t step) const;
  // folder: of a checkpoint, complete or not.
  static std::filesystem::path file_of(const std::filesystem::path& folder, std::size_t rank,
                                       std::size_t ranks);

  // Creates the folder, locks it for this object and removes incomplete checkpoints of earlier jobs. Returns
  // a new folder for the ranks' files. failed_precondition: the step is not after the newest complete one.
  std::filesystem::path begin(std::int64_t step);
  void complete(const std::filesystem::path& unfinished, const Manifest& manifest);
  void abandon(const std::filesystem::path& unfinished) const noexcept;
  void keep(std::size_t newest) const;   // removes all complete checkpoints except the newest ones
  void remove_after(std::int64_t step);  // locks the folder, as begin() does

 private:
  void lock();
  void remove(std::int64_t step) const;
  std::filesystem::path unfinished(std::int64_t step) const;

  const std::filesystem::path path_;
  std::optional<weights::CheckedFile> lock_;
};

}  // namespace weft::sharded
