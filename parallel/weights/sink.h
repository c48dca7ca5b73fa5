// Sink: tensors that are written into one file, or into shards of it, and appear there all at once.
//
//   const auto sink = weights::create_sink("model.safetensors");
//   sink->declare(weights::forms_of(tensors));
//   for (const auto& [name, tensor] : tensors) sink->write(name, tensor);
//   sink->finish();
//
// The caller owns the sink. Several ranks can write one file on a file system that they share: each has a
// sink with its `rank`, and declares the same tensors, rank 0 before the others. Each writes its slices and
// calls finish(), rank 0 after the others. They write through mapped memory, so the file system must keep the
// memory of all ranks coherent: ranks of one host, or Lustre and the like, but not NFS between hosts.
// Functions throw, as read and write calls of files do: resource_exhausted if the disk is full,
// failed_precondition if a file cannot be written. Until finish() of rank 0 has succeeded, an earlier file at
// the path is unchanged, also if the process dies. Threads may call write() at the same time, and no other
// function.
#pragma once

#include <weft/parallel/weights/names.h>
#include <weft/parallel/weights/slice.h>
#include <weft/parallel/weights/source.h>
#include <weft/parallel/weights/tensor_form.h>
#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace weft::weights {

class WEFT_EXPORT Sink {
 public:
  Sink() = default;
  virtual ~Sink();  // without finish(), removes the unfinished file
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  // Says which tensors the file will have, and reserves space for them. invalid_argument, before anything is
  // written: the format cannot have one of them.
  virtual void declare(const TensorForms& tensors, const std::map<std::string, std::string>& notes = {}) = 0;
  // Writes the elements of a slice, of any device. invalid_argument: no such tensor was declared, or the
  // values have another shape than the slice, or another dtype and `convert` is false.
  virtual void write(const std::string& name, const at::Tensor& values, const Slice& slice = {},
                     bool convert = false) = 0;
  // Makes the file appear at its path, once; write() is then an error. failed_precondition, which lists the
  // tensors: with one rank, elements of them have not been written.
  virtual void finish() = 0;
};

// Options of create_sink().
struct SinkOptions {
  int rank = 0, ranks = 1;  // the rank of this sink, and the number of ranks that write the file
  // Of a folder: a new shard begins if the next tensor would make the shard larger than this.
  std::uint64_t max_shard_bytes = 5'000'000'000;
};

// The format follows from the path:
//   - *.safetensors: one file. Of tensors that are the same elements of one storage, one is written, and the
//     notes name it for the others, as safetensors' save_model() does. Tensors that share a part of their
//     memory are written separately.
//   - *.pt, *.pth, *.bin: a dictionary that torch.load() reads, also with weights_only=True. Tensors that
//     share memory share it in the file. It has no place for notes, and drops them.
//   - a folder, which exists or has no extension: shards model-00001-of-00003.safetensors, and
//     model.safetensors.index.json. Earlier shards are removed when the index is replaced.
// invalid_argument: another extension.
WEFT_EXPORT std::unique_ptr<Sink> create_sink(const std::filesystem::path& path, SinkOptions options = {});

// What copy() and save() change.
struct SaveOptions {
  NameMap names = {};                             // -> of the file; empty: the same names
  std::map<std::string, std::string> notes = {};  // added to those of the source
  std::optional<at::ScalarType> dtype = {};  // of all floating-point tensors in the file; empty: their own
};

// Writes all tensors and notes of a source into a sink, through mapped memory, and finishes it. Errors: those
// of the sink, and invalid_argument if two names become one.
WEFT_EXPORT void copy(const Source& source, Sink& sink, const SaveOptions& options = {});

}  // namespace weft::weights
