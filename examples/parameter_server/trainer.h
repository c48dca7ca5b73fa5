// A trainer: its share of the training images, one of the two ways to train on them, and then the test
// images.
#pragma once

#include <weft/rpc/membership/job.h>

#include "parameter_server/settings.h"

void train(weft::rpc::Job& job, const Settings& settings);
