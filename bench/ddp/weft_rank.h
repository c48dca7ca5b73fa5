// Functions that the peers of weft in this bench share.
#pragma once

#include "bench/ddp/work.h"

#include <weft/parallel/collectives/group.h>

#include <functional>
#include <string>

namespace weft::bench {

// Runs f with the group of all ranks, in a rank's process.
void as_rank(const Work& work, const std::string& store, RankEnd& end,
             const std::function<void(const collectives::Group&)>& f);

// Measures a step of all ranks. Rank 0 calls `add` to add its own figures.
void measure(RankEnd& end, const collectives::Group& group, const std::function<void()>& step,
             const std::function<void(Figures&)>& add);

// Calls `run` in each rank's process.
Contender rank_contender(const char* name, const Work& work,
                         std::function<void(const std::string& store, RankEnd& end)> run);

}  // namespace weft::bench
