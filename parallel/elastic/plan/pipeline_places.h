// place_in_pipelines(): assigns the ranks of a generation to pipelines of one model. A pure function, with
// the same result on all ranks for equal arguments. No LibTorch.
#pragma once

#include <weft/rpc/core/export.h>

#include <optional>
#include <vector>

namespace weft::elastic {

// The place of a rank of the generation.
struct PipelinePlace {
  int pipeline = 0;  // its number, from 0
  int rank = 0;      // in the pipeline: determines the stages of the rank
  friend bool operator==(const PipelinePlace&, const PipelinePlace&) = default;
};

// Forms as many pipelines of `ranks` ranks as the generation has ranks for, and returns the place of each
// rank; nullopt: the rank is a spare. before: the previous place of each rank; nullopt: the rank is new or
// was a spare. A rank keeps its place if that place still exists. Otherwise it gets a free place with the
// same PipelinePlace::rank, so that it keeps its stages. All other ranks get the places that are left, in the
// order of the ranks.
WEFT_EXPORT std::vector<std::optional<PipelinePlace>> place_in_pipelines(
    const std::vector<std::optional<PipelinePlace>>& before, int ranks);

}  // namespace weft::elastic
