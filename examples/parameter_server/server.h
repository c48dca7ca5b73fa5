// The server: owns the objects that trainers create on it, and prints the results of the run.
#pragma once

#include <weft/rpc/job/job.h>

#include "parameter_server/settings.h"

void serve(weft::rpc::Job& job, const Settings& settings);
