// Checkpoint files of one owner of an embedding, and the sets of files in a directory that belong together.
//
// A file is full (all rows) or incremental (the rows that were changed or erased since the previous file). It
// is written under another name, synced and renamed, so a file with its final name is complete. It ends with
// a CRC-32C of its contents. Names: embedding-SEQUENCE-PREVIOUS-INDEX-of-OWNERS.rows, with PREVIOUS 0 for a
// full file. The layout, little-endian:
//
//   header    "weftrows", then five u64: version (1), dimension, floats per row (its values and its state),
//             kind of the optimizer, number of erased ids
//   erased    i64 for each erased id
//   blocks    u64 number of rows, then for all rows: ids (i64), ages (u32), floats (f32); the last block has
//             0 rows
//   checksum  u32, the CRC-32C of all bytes before it
//
// Errors: failed_precondition for files that cannot be read or written, or are damaged; resource_exhausted if
// the disk is full; invalid_argument if the file belongs to another embedding. Used by one thread.
#pragma once

#include <weft/dist_optim/embedding/row_store.h>

#include <filesystem>
#include <optional>
#include <string>

namespace weft::dist_optim {

// The contents of the name of a file.
struct CheckpointFile {
  std::uint64_t sequence = 0;
  std::uint64_t previous = 0;  // 0: full
  std::uint32_t index = 0;     // of the owner that wrote it
  std::uint32_t owners = 0;    // the number of owners

  // name() and parse() convert to and from the file's name. parse() returns nullopt for a name of another
  // form.
  std::string name() const;
  static std::optional<CheckpointFile> parse(const std::string& name);
  friend auto operator<=>(const CheckpointFile&, const CheckpointFile&) = default;
};
WEFT_CODEC(CheckpointFile, sequence, previous, index, owners)

// The files in a directory, sorted by sequence and owner; empty if the directory does not exist.
WEFT_EXPORT std::vector<CheckpointFile> checkpoint_files(const std::filesystem::path& directory);

// Writes the changes after `since` (0: all rows, and no erased ids). Returns the number of rows.
// already_exists: the file exists.
WEFT_EXPORT std::uint64_t write_checkpoint(const std::filesystem::path& directory, const CheckpointFile& file,
                                           const RowStore& rows, RowStore::Epoch since);

// Applies the file to `rows`: erases its erased ids and stores its rows. If it throws, a part of the file may
// have been applied.
WEFT_EXPORT void read_checkpoint(const std::filesystem::path& directory, const CheckpointFile& file,
                                 RowStore& rows);

// The files of one checkpoint: for each owner its full file and the later incremental files, in order.
struct CheckpointChains {
  std::uint64_t sequence = 0;
  std::vector<std::vector<CheckpointFile>> chains;  // by the index of the owner that wrote them
};
// Returns the newest checkpoint for which the files of every owner exist; nullopt if no checkpoint is
// complete.
WEFT_EXPORT std::optional<CheckpointChains> newest_checkpoint(std::vector<CheckpointFile> files);

}  // namespace weft::dist_optim
