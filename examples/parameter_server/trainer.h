// A trainer: trains on its part of the images in one of the two modes, and then tests.
#pragma once

#include <weft/rpc/job/job.h>

#include "parameter_server/settings.h"

void train(weft::rpc::Job& job, const Settings& settings);
