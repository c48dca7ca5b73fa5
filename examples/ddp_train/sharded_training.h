// The training in which the state is split over the ranks.
#pragma once

#include <weft/rpc/agent/stats.h>

#include "ddp_train/settings.h"

void train_sharded(weft::rpc::Agent& agent, weft::rpc::Gauges& gauges, const Settings& settings);
