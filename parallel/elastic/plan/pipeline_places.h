// place_in_pipelines(): which ranks of a generation form pipelines of one model, and which stages each of
// them computes. Pure data; the same on all ranks for equal arguments. No LibTorch.
#pragma once

#include <weft/rpc/core/export.h>

#include <optional>
#include <vector>

namespace weft::elastic {

// The place of a rank of the generation.
struct PipelinePlace {
  int pipeline = 0;  // its number, from 0
  int rank = 0;      // in the pipeline: decides which stages this rank computes
  friend bool operator==(const PipelinePlace&, const PipelinePlace&) = default;
};

// As many pipelines of `ranks` ranks as the generation has ranks for. before: of each rank, its place until
// now; nullopt: it is new, or had no place. Ranks keep their place as far as it is needed, so that they keep
// their stages; first their pipeline too. The others take the places that are free, in their order. nullopt:
// a rank without a place, because all pipelines are complete.
WEFT_EXPORT std::vector<std::optional<PipelinePlace>> place_in_pipelines(
    const std::vector<std::optional<PipelinePlace>>& before, int ranks);

}  // namespace weft::elastic
