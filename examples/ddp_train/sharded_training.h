// The training with a state that is split over the ranks.
#pragma once

#include <weft/rpc/agent/agent.h>

#include "ddp_train/settings.h"

void train_sharded(weft::rpc::Agent& agent, const Settings& settings);
