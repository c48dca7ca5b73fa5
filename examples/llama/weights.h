// The weights of a model in the files of its folder. Each rank reads and writes its parts.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/parallel/weights/source.h>

#include <filesystem>

#include "llama/config.h"

// Reads the parts of a state. The names are those of the file. Values of another type are converted.
void read_weights(const weft::sharded::SlicedState& state, const weft::weights::Source& source);

// Writes model.safetensors into the folder, with the types that the source has. All ranks call it; the folder
// is shared by all of them.
void write_weights(const weft::collectives::Group& world, const weft::sharded::SlicedState& state,
                   const weft::weights::TensorForms& forms, const std::filesystem::path& folder);

// The tensors of the source that the model has. Throws std::runtime_error if others are missing or left.
weft::weights::TensorForms tensors_in(const weft::weights::Source& source, const Config& config);
