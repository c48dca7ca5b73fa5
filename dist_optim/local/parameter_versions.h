// ParameterVersions: the storages of every version of a module's parameters that is still needed.
//
// Version 0 is the initial content of the module. If no other pass prevents it, a step changes the newest
// version in place, which then has the next number. Otherwise the newest version is first copied and stays
// unchanged (copy on write). A copy uses the storages of the version that was dropped last, if nothing refers
// to them any more: with fresh pages a copying step takes up to twice as long. One set of storages more than
// the live versions need may therefore be kept.
//
// set_data points the module's tensors at a version: the TensorImpl, its version counter and requires_grad
// stay, so a leaf that a graph saved reads the version that is loaded when it is unpacked, and LibTorch's
// check of saved variables passes. Views that a graph saved (a transposed weight) keep the storage of their
// version.
//
// Owner: ParameterHost, or a stage of a pipeline. Thread-safety: full; load() only with no reader of the
// module's tensors (VersionGate).
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
  // One for each parameter, in their order.
  using Tensors = std::vector<at::Tensor>;

  // parameters: of the module, whose tensors load() changes.
  explicit ParameterVersions(const std::vector<Parameter>& parameters);

  // Points the module's tensors at this version, or at the newest if it is no longer kept. Does not change a
  // tensor that already is there.
  void load(Version version);

  // The storages of the newest version. Do not write to them.
  std::shared_ptr<const Tensors> newest() const;

  // Gives the newest version its next number, which is `next`.
  void advance_in_place(Version next);
  // The newest version's tensors, copied.
  Tensors copy_newest();
  // Makes such a copy the newest version.
  void advance_to(Version next, Tensors copy);

  // Drops a version that is not the newest.
  void drop(Version version);

  std::size_t live() const;            // versions
  std::uint64_t copied_bytes() const;  // in all

 private:
  const std::vector<at::Tensor> module_;  // the module's own tensors; the gate determines their version

  mutable rpc::Mutex mutex_;
  std::map<Version, std::shared_ptr<const Tensors>> versions_ WEFT_GUARDED_BY(mutex_);
  std::shared_ptr<const Tensors> spare_ WEFT_GUARDED_BY(mutex_);  // of the version that was dropped last
  std::uint64_t copied_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
};

}  // namespace weft::dist_optim
