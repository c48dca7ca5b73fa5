// Checkpoint files of one owner of an embedding, and which of those that lie in a directory belong together.
//
// A file is full (all rows) or incremental (what changed and what was erased since the file before it). It is
// written beside its place, synced and renamed, so what has its name is whole; a CRC-32C at its end proves
// it. Names: embedding-SEQUENCE-PREVIOUS-INDEX-of-OWNERS.rows, PREVIOUS 0 where it is full. Layout,
// little-endian: "weftrows", then u64s: version 1, dimension, floats a row with its state, optimizer kind,
// how many ids were erased; these, i64; blocks of rows: u64 count, ids i64, ages u32, floats f32; an empty
// block; u32 CRC-32C of all before it.
//
// Errors: failed_precondition for files that cannot be read or written, or are damaged; resource_exhausted
// where the disk is full; invalid_argument where the rows are of another embedding. Used by one thread.
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
  std::uint32_t index = 0;     // whose, of
  std::uint32_t owners = 0;    // so many

  // parse(): nothing if a file of this name is not a checkpoint.
  std::string name() const;
  static std::optional<CheckpointFile> parse(const std::string& name);
  friend auto operator<=>(const CheckpointFile&, const CheckpointFile&) = default;
};
WEFT_CODEC(CheckpointFile, sequence, previous, index, owners)

// Those in a directory, by sequence and owner; none where there is no such directory.
WEFT_EXPORT std::vector<CheckpointFile> checkpoint_files(const std::filesystem::path& directory);

// Writes what changed after `since` (0: all rows, nothing erased). Returns how many rows. already_exists
// where there is such a file.
WEFT_EXPORT std::uint64_t write_checkpoint(const std::filesystem::path& directory, const CheckpointFile& file,
                                           const RowStore& rows, RowStore::Epoch since);

// Erases and puts what the file says. Where it throws, some of it may have been done.
WEFT_EXPORT void read_checkpoint(const std::filesystem::path& directory, const CheckpointFile& file,
                                 RowStore& rows);

// The newest checkpoint of which every owner's files are there: for each owner its full file and the
// incremental ones after it, in order. Nothing where there is none.
struct CheckpointChains {
  std::uint64_t sequence = 0;
  std::vector<std::vector<CheckpointFile>> chains;  // by the index of the owner that wrote them
};
WEFT_EXPORT std::optional<CheckpointChains> newest_checkpoint(std::vector<CheckpointFile> files);

}  // namespace weft::dist_optim
