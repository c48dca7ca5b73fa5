// make_node<T>(arguments...): creates a node of type T, which derives from torch::autograd::Node. The result
// has the pointer type by which this LibTorch version owns nodes: it converts to NodePtr and can be used in
// an Edge.
#pragma once

#include <weft/dist_autograd/engine/internal/node_executor.h>

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace weft::dist_autograd {

// Callers do not set `Base`. Because of `Base`, the call of deleteNode depends on a template parameter, so
// that it also compiles with newer versions of LibTorch, which lack deleteNode.
template <class T, class... Arguments, class Base = torch::autograd::Node>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Base>>) {
    // In LibTorch before 2.15, only this deleter frees a deep graph without recursion.
    return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                              [](T* node) { deleteNode(static_cast<Base*>(node)); });
  } else {
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace weft::dist_autograd
