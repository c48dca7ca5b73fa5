// PointToPoint: one of several messages that start together (Group::batch).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace weft::collectives {

struct PointToPoint {
  // send: this rank sends the tensor to `peer`, as Group::send(). recv: it receives the tensor from `peer`,
  // as Group::recv().
  enum class Kind : std::uint8_t { send, recv };
  Kind kind = Kind::send;
  at::Tensor tensor;
  int peer = 0;  // a rank of the group
  std::uint64_t tag = 0;
};

}  // namespace weft::collectives
