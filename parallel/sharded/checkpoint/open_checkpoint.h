// open_checkpoint(): a checkpoint of any number of ranks as a source of whole tensors, and of slices of them.
//
//   const auto source = sharded::open_checkpoint("run/checkpoints", 120);
//   weights::copy(*source, *weights::create_sink("model.pt"), {.names = weights::prefixes({{"model/",
//   ""}})});
#pragma once

#include <weft/parallel/weights/source.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <filesystem>
#include <memory>

namespace weft::sharded {

// Reads the headers of all files, and keeps them open. read() reads the elements that it needs, in blocks of
// 1 MiB, whose checksums it checks; view() returns a copy. The notes are those of the checkpoint. It needs no
// group. Functions of the source are thread-safe, but run one after the other. Errors: those of
// Checkpoints::load().
WEFT_EXPORT std::shared_ptr<weights::Source> open_checkpoint(const std::filesystem::path& folder,
                                                             std::int64_t step);
// The newest complete checkpoint in a folder, or the one of this step's folder (FOLDER/step-000000120). Null:
// the folder is neither.
WEFT_EXPORT std::shared_ptr<weights::Source> find_checkpoint(const std::filesystem::path& folder);

}  // namespace weft::sharded
