// NodePtr: the type by which LibTorch owns the nodes of a graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <utility>

namespace weft::dist_autograd {

// The type of Edge::function: an intrusive_ptr since LibTorch 2.15, a shared_ptr before. It is derived from
// Tensor::grad_fn(), because the headers of the autograd engine take seconds to compile.
using NodePtr = std::remove_cvref_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

}  // namespace weft::dist_autograd
