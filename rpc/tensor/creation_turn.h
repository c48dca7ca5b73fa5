// CreationTurn: runs the constructors of served objects one at a time. LibTorch has one default random
// generator for each device of the process, and modules draw their parameters from it. If two constructors
// ran at the same time, each would draw some of the other's numbers, even if both set the seed.
//
// On one agent, objects are constructed in the order in which their creating calls arrive. Constructors on
// different agents of one process exclude each other, but their order is unspecified: if they do not set the
// seed themselves, await one creation before the next.
#pragma once

#include <weft/rpc/agent/agent.h>

namespace weft::tensor {

// Part of tensor::layers().
WEFT_EXPORT void add_creation_turn(rpc::Agent& agent);

}  // namespace weft::tensor
