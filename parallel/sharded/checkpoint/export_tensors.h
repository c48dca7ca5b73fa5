// export_tensors: a checkpoint of any number of ranks as one safetensors file, for other programs.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace weft::sharded {

// Writes the notes of the checkpoint, and the tensors whose names begin with `prefix`. The prefix is removed
// from the names. Holds one whole tensor in memory at a time, and keeps each rank's file open. It needs no
// group. A file at the path is replaced atomically. Errors: those of Checkpoints::load() and
// write_tensor_file(). For files of other formats, copy the source of open_checkpoint().
WEFT_EXPORT void export_tensors(const std::filesystem::path& checkpoint_folder, std::int64_t step,
                                const std::filesystem::path& file, const std::string& prefix = "");

}  // namespace weft::sharded
