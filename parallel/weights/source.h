// Source: the tensors of a file, of which a program reads those that it needs, or slices of them.
//
//   const auto source = weights::open_source("model.safetensors");
//   source->read("layer.weight", my_rows, weights::Slice::rows(8, 16));
//
// Files are mapped into memory: open_source() reads the names and shapes only. The caller owns the source.
// Functions are thread-safe. While a source or a view exists, no program may shorten its files in place;
// replacing a file is safe. Nothing in a file is executed, and a file that is damaged or hostile is refused
// with an error that names the file and the fault, before memory is allocated for it: failed_precondition, or
// unsupported for what weft does not read.
#pragma once

#include <weft/parallel/weights/slice.h>
#include <weft/parallel/weights/tensor_form.h>
#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>

namespace weft::weights {

class WEFT_EXPORT Source {
 public:
  Source() = default;
  virtual ~Source();
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  const TensorForms& tensors() const { return tensors_; }  // by name
  const TensorForm& form(const std::string& name) const;   // not_found: no tensor has this name
  // What the file says in addition to the tensors: the metadata of safetensors, or the numbers and texts of a
  // file of torch.save by their paths.
  const std::map<std::string, std::string>& notes() const { return notes_; }
  const std::string& description() const { return description_; }  // the file's path, for messages

  // The tensor in mapped memory, with its strides; its pages are read when they are used. The view keeps the
  // file open. If a program writes to a view, it changes a private copy of the page. A tensor that is not
  // aligned in the file, or is in several pieces, is a copy.
  virtual at::Tensor view(const std::string& name) const = 0;
  // Fills `to` (of the slice's shape, on any device) with the elements of a slice. invalid_argument: the
  // slice is not in the tensor, or `to` has another shape, or another dtype and `convert` is false. Values
  // are unspecified if a checksum is wrong.
  virtual void read(const std::string& name, const at::Tensor& to, const Slice& slice = {},
                    bool convert = false) const = 0;

 protected:
  // The elements of a slice of `whole`, the tensor `name`, with which read() fills `to`. Errors: those of
  // read().
  at::Tensor part_to_read(const std::string& name, const at::Tensor& to, const Slice& slice, bool convert,
                          const at::Tensor& whole) const;

  // What the functions of these names return.
  TensorForms tensors_;
  std::map<std::string, std::string> notes_;
  std::string description_;
};

// Options of open_source().
struct OpenOptions {
  // Whether a checksum of a storage in the file is checked when its first element is used, which reads all
  // of the storage. If false, a rank that uses slices reads only the bytes of these slices. safetensors has
  // no checksums.
  bool checksums = true;
};

// Opens
//   - a file of safetensors,
//   - an index of shards (model.safetensors.index.json),
//   - a folder with model.safetensors, or model.safetensors.index.json,
//   - a file of torch.save. The names are paths through its dictionaries and lists, joined by '.':
//     "model.layer.weight" of {"model": {"layer.weight": ...}}. A file that is one tensor has the name
//     "tensor". Names that are equal as paths are refused.
//   - a folder of torch.distributed.checkpoint (".metadata" and *.distcp). Its numbers and texts are notes.
//     Tensors that are in several pieces are put together in memory by view().
WEFT_EXPORT std::shared_ptr<Source> open_source(const std::filesystem::path& path, OpenOptions options = {});

}  // namespace weft::weights
