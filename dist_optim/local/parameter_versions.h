// ParameterVersions: the storages of every version of a module's parameters that is still needed.
//
// Version 0 is the initial content of the module. If no other pass reads the newest version, a step changes
// it in place, and the version gets the next number. Otherwise the step changes a copy, and the version that
// was the newest stays unchanged (copy on write). A step that copies to fresh pages takes up to twice as
// long. So the storages of the version that was dropped last are kept, and the next copy uses them if nothing
// else refers to them.
//
// set_data points the module's tensors at a version: the TensorImpl, its version counter and requires_grad
// stay. So a leaf that a graph saved reads the version that is loaded when the graph unpacks the leaf, and
// LibTorch's check of saved variables passes. Views that a graph saved (a transposed weight) keep the storage
// of their version.
//
// Owner: OwnedParameters, or a stage of a pipeline. Thread-safety: full; call load() only while no thread
// reads the module's tensors (VersionGate).
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace weft::dist_optim {

class WEFT_EXPORT ParameterVersions {
 public:
  using Version = std::uint64_t;
  // One tensor for each parameter, in the order of the parameters.
  using Tensors = std::vector<at::Tensor>;

  // parameters: the module's parameters. load() changes their tensors.
  explicit ParameterVersions(const std::vector<Parameter>& parameters);

  // Points the module's tensors at this version, or at the newest version if this one is no longer kept. Does
  // not change a tensor that already points at the version.
  void load(Version version);

  // The storages of the newest version. Do not write to them.
  std::shared_ptr<const Tensors> newest() const;

  // Gives the newest version the number `next`, for a step in place.
  void advance_in_place(Version next);
  // Returns a copy of the newest version's tensors.
  Tensors copy_newest();
  // Makes a copy from copy_newest() the newest version, with the number `next`.
  void advance_to(Version next, Tensors copy);

  // Drops the version. No effect if it is the newest.
  void drop(Version version);

  std::size_t live() const;            // the number of versions that are kept
  std::uint64_t copied_bytes() const;  // the total size of all copies so far

 private:
  const std::vector<at::Tensor> module_;  // the module's own tensors, at the version of the VersionGate

  mutable rpc::Mutex mutex_;
  std::map<Version, std::shared_ptr<const Tensors>> versions_ WEFT_GUARDED_BY(mutex_);
  std::shared_ptr<const Tensors> spare_ WEFT_GUARDED_BY(mutex_);  // of the version that was dropped last
  std::uint64_t copied_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::dist_optim
