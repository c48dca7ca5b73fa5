// expect_agreement: compares what the ranks of a group are about to construct, so that a difference is an
// error on all of them and not a collective that waits.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Generator.h>

#include <optional>
#include <string>

namespace weft::tensor_parallel {

// All ranks call it, and it blocks. own: this rank's module with its sizes and options. invalid_argument on
// all ranks: two differ; names both.
void expect_agreement(const collectives::Group& group, const std::string& own);
// The same for a module that draws initial values: all ranks have the generator, or LibTorch's own for the
// CPU, in one state; else invalid_argument, which names the ranks that differ.
void expect_agreement(const collectives::Group& group, const std::string& own,
                      const std::optional<at::Generator>& generator);

// What a layer throws: "OPERATION: TEXT".
[[noreturn]] void refuse(const std::string& operation, const std::string& text);
// The derivative of the layer's gradient is not computed. unsupported if backward is recorded (create_graph).
void refuse_recorded_backward(const std::string& operation);

}  // namespace weft::tensor_parallel
