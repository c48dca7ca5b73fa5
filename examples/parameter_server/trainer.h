// A trainer: its share of the training images, one of the two ways to train on them, and then the test
// images.
#pragma once

#include <weft/rpc/agent/agent.h>

#include "parameter_server/settings.h"

void train(weft::rpc::Agent& agent, const Settings& settings);
