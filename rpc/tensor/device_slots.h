// OutgoingDevices and IncomingDevices: the information about devices for the tensor codec, in the slots of a
// message that is written or read. Without them, all tensors of the message are on the CPU on both sides.
//
// The device layer (device_layer.h) adds them. Only the thread that writes or reads the message uses them.
#pragma once

#include <weft/rpc/tensor/device_map.h>
#include <weft/rpc/tensor/staging.h>

namespace weft::tensor {

struct OutgoingDevices {
  DeviceMap map;                     // from this agent's devices to the receiver's
  std::string receiver;              // the receiver's name
  std::vector<c10::Stream> streams;  // the tensors are complete on them; empty: the thread's current streams
  HostCopies copies;                 // finished before the message is sealed
  bool places = false;               // true: the receiver puts at least one tensor on an accelerator
};

struct IncomingDevices {
  std::vector<c10::Stream> streams;  // one for each possible device: tensors arrive on them
  DeviceMap back;                    // from this agent's devices to the sender's, for gradients
};

}  // namespace weft::tensor
