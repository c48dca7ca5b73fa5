// Which tensor of a file is read into which tensor of a program. Used by load_into() and
// sharded::load_weights().
#pragma once

#include <weft/parallel/weights/module.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace weft::weights {

struct Match {
  std::map<std::string, std::string> read;  // names of the program -> of the file
  // Names of the file of tensors that are one tensor in the program: their values must be equal.
  std::vector<std::pair<std::string, std::string>> same;
  LoadReport report;
};

// wanted: the tensors of the program; those that are the same elements of one storage are read once. A tensor
// without elements is neither missing nor unexpected: there is nothing to read, and a SlicedState lacks it.
// invalid_argument, which lists all that is missing, unexpected or of another shape or dtype.
Match match(const Source& source, const TensorForms& wanted, const LoadOptions& options);

// invalid_argument: the values of Match::same differ.
void expect_same(const Source& source, const Match& match);

// invalid_argument, which lists the faults by their kinds. No effect if the lists are empty.
void expect_no_faults(const Source& source, const std::map<std::string, std::vector<std::string>>& by_kind);

}  // namespace weft::weights
