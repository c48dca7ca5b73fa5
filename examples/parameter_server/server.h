// The server: owns what trainers create on it, and says at the end how it went.
#pragma once

#include <weft/rpc/agent/agent.h>

#include "parameter_server/settings.h"

void serve(weft::rpc::Agent& agent, const Settings& settings);
