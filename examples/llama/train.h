// The command `train`: fine-tunes a model on a text, over a mesh of ranks.
#pragma once

#include <weft/rpc/agent/agent.h>

#include "llama/settings.h"

// All ranks call it. Rank 0 shows the progress.
void train(weft::rpc::Agent& agent, const Settings& settings);
