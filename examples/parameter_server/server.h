// The server: owns what trainers create on it, and says at the end how it went.
#pragma once

#include <weft/rpc/membership/job.h>

#include "parameter_server/settings.h"

void serve(weft::rpc::Job& job, const Settings& settings);
