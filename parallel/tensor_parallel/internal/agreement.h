// expect_agreement: compares the modules that the ranks of a group are about to construct, so that a
// difference is an error on all ranks, and not a collective that hangs.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Generator.h>

#include <optional>
#include <string>

namespace weft::tensor_parallel {

// All ranks call it, and it blocks. own: this rank's module with its sizes and options, as text.
// invalid_argument on all ranks: two texts differ; the error has both.
void expect_agreement(const collectives::Group& group, const std::string& own);
// The same for a module that draws initial values from the generator; nullopt: LibTorch's default generator
// for the CPU. invalid_argument, which names the ranks that differ: the generator has different states.
void expect_agreement(const collectives::Group& group, const std::string& own,
                      const std::optional<at::Generator>& generator);

// Throws a layer's error: "OPERATION: TEXT".
[[noreturn]] void refuse(const std::string& operation, const std::string& text);
// Throws unsupported if backward is recorded (create_graph): the layer cannot differentiate its gradient.
void refuse_recorded_backward(const std::string& operation);

}  // namespace weft::tensor_parallel
