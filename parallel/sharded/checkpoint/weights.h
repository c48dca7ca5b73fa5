// Weights from published files for models that are split over ranks, and back into files.
//
//   sharded::SlicedState state;
//   fsdp.add_to(state, "");            // or add_module(state, module, ""), or pipeline.sharded().add_to(...)
//   sharded::load_weights(world, state, "model.safetensors");
//   ...
//   sharded::save_weights(world, state, "tuned.safetensors");
//
// The files and their formats are those of parallel/weights. The ranks of `world` together have the whole
// model: its parts, its stages, or copies of it. A state may have parameters, buffers and states of
// optimizers. Each rank reads the elements that it has, and no others. If several ranks have an element, one
// of them writes it.
//
// All ranks call these functions, which block, between iterations. If a rank has an error, all ranks throw
// it. Ranks on several hosts need a file system that they share; for save_weights(), one that keeps mapped
// memory coherent (parallel/weights/sink.h). Thread-safety: one call at a time for each group.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/parallel/weights/module.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <filesystem>

namespace weft::sharded {

// Fills the tensors of the state. `missing` and `unexpected` are those of all ranks together. Errors: those
// of weights::open_source() and weights::load_into(). Nothing has changed if names, shapes or dtypes do not
// fit; values are unspecified if reading fails.
WEFT_EXPORT weights::LoadReport load_weights(const collectives::Group& world, const SlicedState& state,
                                             const std::filesystem::path& path,
                                             const weights::LoadOptions& options = {},
                                             const weights::OpenOptions& open = {});
// The same for a source that each rank has opened.
WEFT_EXPORT weights::LoadReport load_weights(const collectives::Group& world, const SlicedState& state,
                                             const weights::Source& source,
                                             const weights::LoadOptions& options = {});

// Writes the tensors of all ranks, and the notes of rank 0, as weights::save() does. Errors: those of
// weights::create_sink() and plan_writers(). max_shard_bytes: weights::SinkOptions.
WEFT_EXPORT void save_weights(const collectives::Group& world, const SlicedState& state,
                              const std::filesystem::path& path, const weights::SaveOptions& options = {},
                              std::uint64_t max_shard_bytes = weights::SinkOptions{}.max_shard_bytes);

}  // namespace weft::sharded
