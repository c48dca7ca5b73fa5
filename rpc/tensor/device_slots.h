// OutgoingDevices and IncomingDevices: what the tensor codec needs to know of devices, in the slots of a
// message that is written or read. Without them every tensor of the message is on the CPU at both ends.
//
// Put there by the device layer (device_layer.h); used by the thread that has the message.
#pragma once

#include <weft/rpc/tensor/device_map.h>
#include <weft/rpc/tensor/staging.h>

namespace weft::tensor {

struct OutgoingDevices {
  DeviceMap map;                     // to the receiver's devices
  std::string receiver;              // its name
  std::vector<c10::Stream> streams;  // on which the tensors are complete; none: the thread's current ones
  HostCopies copies;                 // finished before the message is sealed
  bool places = false;               // some tensor goes to an accelerator
};

struct IncomingDevices {
  std::vector<c10::Stream> streams;  // on which tensors arrive, one for each device that they may go to
  DeviceMap back;                    // to the sender's devices: the way of gradients
};

}  // namespace weft::tensor
