// Checkpoint files of one owner of an embedding, and the sets of files in a directory that belong together.
//
// A file is full (all rows) or incremental (the changed and erased rows since the previous file). It is
// written under another name, synced and renamed, so a file with its final name is complete; a CRC-32C at its
// end checks it. Names: embedding-SEQUENCE-PREVIOUS-INDEX-of-OWNERS.rows, with PREVIOUS 0 for a full file.
// Layout, little-endian: "weftrows", then u64s: version 1, dimension, floats of a row with its state,
// optimizer kind, number of erased ids; these ids, i64; blocks of rows: u64 count, ids i64, ages u32, floats
// f32; an empty block; u32 CRC-32C of all before it.
//
// Errors: failed_precondition for files that cannot be read or written, or are damaged; resource_exhausted if
// the disk is full; invalid_argument if the rows are of another embedding. Used by one thread.
#pragma once

#include <weft/dist_optim/embedding/row_store.h>

#include <filesystem>
#include <optional>
#include <string>

namespace weft::dist_optim {

// What the name of a file says.
struct CheckpointFile {
  std::uint64_t sequence = 0;
  std::uint64_t previous = 0;  // 0: full
  std::uint32_t index = 0;     // of the owner that wrote it
  std::uint32_t owners = 0;    // the number of owners

  // parse(): nothing if a file of this name is not a checkpoint.
  std::string name() const;
  static std::optional<CheckpointFile> parse(const std::string& name);
  friend auto operator<=>(const CheckpointFile&, const CheckpointFile&) = default;
};
WEFT_CODEC(CheckpointFile, sequence, previous, index, owners)

// The files in a directory, by sequence and owner; empty if the directory does not exist.
WEFT_EXPORT std::vector<CheckpointFile> checkpoint_files(const std::filesystem::path& directory);

// Writes the changes after `since` (0: all rows, nothing erased). Returns the number of rows. already_exists
// if the file exists.
WEFT_EXPORT std::uint64_t write_checkpoint(const std::filesystem::path& directory, const CheckpointFile& file,
                                           const RowStore& rows, RowStore::Epoch since);

// Erases and stores the rows of the file. If it throws, some of this may have been done.
WEFT_EXPORT void read_checkpoint(const std::filesystem::path& directory, const CheckpointFile& file,
                                 RowStore& rows);

// The newest checkpoint that has the files of every owner: for each owner its full file and the later
// incremental ones, in order. Empty if no checkpoint is complete.
struct CheckpointChains {
  std::uint64_t sequence = 0;
  std::vector<std::vector<CheckpointFile>> chains;  // by the index of the owner that wrote them
};
WEFT_EXPORT std::optional<CheckpointChains> newest_checkpoint(std::vector<CheckpointFile> files);

}  // namespace weft::dist_optim
