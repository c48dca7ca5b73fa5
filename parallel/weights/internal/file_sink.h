// FileSink: a Sink that maps the files that it writes. A layout says where in which file each tensor is.
//
// Space is reserved before a file is mapped, so that a full disk is an error and not a signal.
#pragma once

#include <weft/parallel/weights/internal/mapped_source.h>
#include <weft/parallel/weights/sink.h>

#include <atomic>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace weft::weights {

// The place of each tensor, before anything is written.
struct SinkLayout {
  struct File {
    std::filesystem::path path;
    std::uint64_t bytes = 0;
    // Writes what the file has in addition to elements. Called by rank 0 when all elements are in the memory.
    std::function<void(std::byte* file)> complete;
  };
  struct Place {
    std::size_t file = 0;
    std::uint64_t begin = 0;  // of the element with all indices 0
    TensorForm form;          // with strides as in the file
  };
  std::vector<File> files;
  std::map<std::string, Place> places;
  std::map<std::string, std::string> same;  // names that are not written -> the name that is written for them
  std::function<void()> publish = [] {};    // after all files have their names
};

// Tensors as they will be in a file: `storage` is kept only where several tensors share memory.
// same: receives the names of tensors that are the same as another one, which stays.
TensorForms without_lone_storages(TensorForms forms, std::map<std::string, std::string>& same);

SinkLayout safetensors_layout(const std::filesystem::path& path, TensorForms forms,
                              std::map<std::string, std::string> notes);
SinkLayout shards_layout(const std::filesystem::path& folder, TensorForms forms,
                         std::map<std::string, std::string> notes, std::uint64_t max_shard_bytes);
SinkLayout torch_layout(const std::filesystem::path& path, TensorForms forms);

// Tensors as SaveOptions changes them.
struct RenamedForms {
  TensorForms forms;                                       // by their names in the file
  std::vector<std::pair<std::string, std::string>> names;  // in the file, and before
};
// invalid_argument: two names become one.
RenamedForms renamed(const TensorForms& forms, const SaveOptions& options);

// Declares, writes and finishes; values: of the names before SaveOptions::names.
void save_as(const TensorForms& forms, std::map<std::string, std::string> notes,
             const std::function<at::Tensor(const std::string&)>& values, Sink& sink,
             const SaveOptions& options);

}  // namespace weft::weights
