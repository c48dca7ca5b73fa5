// Weights of a module from a file, and into one.
//
//   weights::load_into(*model, *weights::open_source("model.safetensors"));
//   weights::save(*model, *weights::create_sink("tuned.safetensors"));
//
// The tensors of a module are its parameters and buffers, by the names that named_parameters() and
// named_buffers() give them. Tied parameters are one tensor under several names: a file need have only one of
// them. Functions block. The caller must not use the module on other threads meanwhile.
#pragma once

#include <weft/parallel/weights/names.h>
#include <weft/parallel/weights/sink.h>
#include <weft/parallel/weights/source.h>
#include <weft/rpc/core/export.h>

#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

namespace weft::weights {

// How load_into() matches a file with a module.
struct LoadOptions {
  NameMap names = {};    // of the file -> of the module; empty: the same names
  bool strict = true;    // false: names that the file or the module lacks are not an error
  bool convert = false;  // whether a tensor may be of another dtype in the file
};

// Names of the module that the file lacks, and names of the file (mapped) that the module lacks. Empty if
// strict.
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};

// Copies the elements into the module's tensors, on their devices. All names, shapes and dtypes are checked
// first: invalid_argument, which lists all that is missing, unexpected or of another shape or dtype, and the
// module is unchanged. Values are unspecified if reading fails afterwards.
WEFT_EXPORT LoadReport load_into(torch::nn::Module& module, const Source& source,
                                 const LoadOptions& options = {});

// Writes the module into a sink and finishes it. Errors: those of the sink, and invalid_argument if two names
// become one.
WEFT_EXPORT void save(const torch::nn::Module& module, Sink& sink, const SaveOptions& options = {});

// The parameters and buffers of a module that are defined.
WEFT_EXPORT std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module);

}  // namespace weft::weights
