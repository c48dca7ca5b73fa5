// PointToPoint: one of several messages that start together (Group::batch).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace weft::collectives {

struct PointToPoint {
  // Whether this rank sends the tensor to `peer`, or receives it from there, as Group::send() and recv().
  enum class Kind : std::uint8_t { send, recv };
  Kind kind = Kind::send;
  at::Tensor tensor;
  int peer = 0;  // a rank of the group
  std::uint64_t tag = 0;
};

}  // namespace weft::collectives
