// CheckpointFolder: the complete checkpoints in a folder, and the one that is being written.
//
//   FOLDER/step-000000120/rank-0-of-4.safetensors     slices (slice_file.h)
//   FOLDER/step-000000120/manifest.safetensors        no tensors; the notes, and the checksum of each file
//   FOLDER/step-000000140.part-5e0c1f3a9b7d2468/...   one that is being written, or is left over
//   FOLDER/writer.lock                                locked by the job that writes
//
// A folder step-N with a manifest is a complete checkpoint. complete() writes the manifest and gives the
// folder this name, when all ranks have written and synced their files. Each attempt writes into a new
// folder, so that a rank of an earlier job that still writes cannot write into a later one's. Removal first
// renames a checkpoint, so that it is whole or gone.
//
// Only rank 0 changes the folder itself. Errors: failed_precondition and resource_exhausted, naming the path.
// Reading members are thread-safe; the others are called by one thread at a time.
#pragma once

#include <weft/dist_optim/checkpoint/checked_file.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

// What a complete checkpoint says of itself.
struct Manifest {
  std::int64_t step = 0;
  std::vector<std::uint32_t> files;  // checksums, by rank
  std::map<std::string, std::string> notes;
};

class WEFT_EXPORT CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path path) : path_(std::move(path)) {}

  std::vector<std::int64_t> steps() const;  // of the complete checkpoints, in their order
  // The folder of a step, and what its manifest says. Errors: those of read_tensor_file().
  std::filesystem::path of_step(std::int64_t step) const;
  Manifest manifest(std::int64_t step) const;
  // folder: of a checkpoint, complete or not.
  static std::filesystem::path file_of(const std::filesystem::path& folder, std::size_t rank,
                                       std::size_t ranks);

  // Locks the folder for this object, makes it and removes what earlier jobs left over. Refuses a step that
  // is not after the newest complete one. Gives a new folder for the ranks' files.
  std::filesystem::path begin(std::int64_t step);
  void complete(const std::filesystem::path& unfinished, const Manifest& manifest);
  void abandon(const std::filesystem::path& unfinished) const noexcept;
  void keep(std::size_t newest) const;   // removes the other complete ones
  void remove_after(std::int64_t step);  // locks, too

 private:
  void lock();
  void remove(std::int64_t step) const;
  std::filesystem::path unfinished(std::int64_t step) const;

  const std::filesystem::path path_;
  std::optional<dist_optim::CheckedFile> lock_;
};

}  // namespace weft::sharded
