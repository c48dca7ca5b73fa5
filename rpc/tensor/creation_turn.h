// CreationTurn: constructors of served objects run one after the other. LibTorch has one default generator
// for each device of the process, from which modules draw their parameters: of two constructors that ran at a
// time, each would draw some of the other's numbers, also where each sets the seed itself.
//
// On one agent objects are constructed in the order in which the calls that create them arrive. Between
// agents of one process constructors exclude each other, in any order: where they do not set the seed
// themselves, await one creation before the next.
#pragma once

#include <weft/rpc/agent/agent.h>

namespace weft::tensor {

// Part of tensor::layers().
WEFT_EXPORT void add_creation_turn(rpc::Agent& agent);

}  // namespace weft::tensor
