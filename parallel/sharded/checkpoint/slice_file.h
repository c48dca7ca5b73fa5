// Slice files: the slices that one rank wrote into a checkpoint, as one tensor file.
//
// A whole tensor has its name and its shape in the file. A slice is a tensor of one dimension, named
// NAME[BEGIN:END]. A slice of runs is named NAME[FIRST:LENGTH:DISTANCE][BEGIN:END]. The note "weft.slices"
// contains, as JSON, the name, the first element and the runs of each slice, and the sizes of the whole
// tensor. Errors: those of tensor files; invalid_argument if a tensor has another shape or dtype than the
// caller wants. Used by one thread.
#pragma once

#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/parallel/sharded/checkpoint/sliced_state.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::sharded {

// Writes the tensors of these names, which are on the host; returns the file's checksum.
WEFT_EXPORT std::uint32_t write_slices(const std::filesystem::path& path,
                                       const std::map<std::string, SlicedTensor>& tensors,
                                       const std::vector<std::string>& names);

// Reads the slices of a file.
class WEFT_EXPORT SliceFileReader {
 public:
  struct Slice {
    std::vector<std::int64_t> sizes;  // of the whole tensor
    at::ScalarType dtype;
    std::int64_t begin, end;  // elements of the runs
    std::string stored;       // its name in the file
    Runs runs;
  };

  // failed_precondition: the file has another checksum, so it is not the file that was written.
  SliceFileReader(const std::filesystem::path& path, std::uint32_t crc);

  const std::map<std::string, Slice>& slices() const { return slices_; }  // by the tensor's name
  const std::filesystem::path& path() const { return path_; }             // as given
  // Reads elements of the slice's runs into `to`, from `begin` on. They must be in this slice.
  void read(const Slice& slice, std::int64_t begin, const at::Tensor& to);

 private:
  const std::filesystem::path path_;
  dist_optim::TensorFileReader file_;
  std::map<std::string, Slice> slices_;
};

// The wanted elements of a tensor, which are read from one file after the other.
class WEFT_EXPORT SliceTarget {
 public:
  // invalid_argument: the range is not in the tensor, or `values` is not as SlicedTensor describes.
  SliceTarget(std::string name, SlicedTensor tensor);

  bool filled() const;                                                // no element is missing
  void fill_from(SliceFileReader& file);                              // reads the missing elements
  void expect_filled(const std::filesystem::path& checkpoint) const;  // invalid_argument

 private:
  void read(SliceFileReader& file, const SliceFileReader::Slice& slice,
            const std::vector<SharedElements>& elements) const;

  std::string name_;
  SlicedTensor tensor_;
  Runs runs_;
  std::vector<Positions> missing_;  // of the runs
  bool seen_ = false;               // true: a file has the tensor, which is complete if it has no elements
};

}  // namespace weft::sharded
