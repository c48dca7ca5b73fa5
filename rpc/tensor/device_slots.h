// OutgoingDevices and IncomingDevices: the information about devices for the tensor codec, in the slots of a
// message that is written or read. Without them, all tensors of the message are on the CPU on both sides.
//
// The device layer (device_layer.h) adds them; used by the thread that has the message.
#pragma once

#include <weft/rpc/tensor/device_map.h>
#include <weft/rpc/tensor/staging.h>

namespace weft::tensor {

struct OutgoingDevices {
  DeviceMap map;                     // to the receiver's devices
  std::string receiver;              // its name
  std::vector<c10::Stream> streams;  // on which the tensors are complete; empty: the thread's current ones
  HostCopies copies;                 // finished before the message is sealed
  bool places = false;               // a tensor is placed on an accelerator
};

struct IncomingDevices {
  std::vector<c10::Stream> streams;  // on which tensors arrive, one for each possible device
  DeviceMap back;                    // to the sender's devices, for gradients
};

}  // namespace weft::tensor
