// The command `generate`: continues a text.
#pragma once

#include <weft/rpc/agent/agent.h>

#include "llama/settings.h"

// All ranks call it, as many as settings.tensor. Rank 0 prints the text.
void generate(weft::rpc::Agent& agent, const Settings& settings);
