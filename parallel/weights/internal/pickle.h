// A restricted reader of pickles: what torch.save() writes of tensors, containers and plain values.
//
// It knows tensors, parameters, OrderedDict, dict, list, tuple, set, numbers, bool, None, bytes, text,
// torch.Size, dtype and device, the objects of the classes that the caller lists, and refuses everything
// else. It calls nothing that a pickle names: a global is one of a fixed table or of the caller's list, or an
// error. Values are in one array and refer to each other by index, so that
// neither nesting nor cycles can exhaust the stack; the array is at most as long as the pickle has bytes.
// Pure functions.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::weights {

struct PickledStorage {
  std::string key;                                   // of its record
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: bytes
  std::int64_t numel = 0;                            // of the dtype
};

struct PickledTensor {
  PickledStorage storage;
  at::ScalarType dtype = at::kFloat;
  std::int64_t offset = 0;  // in elements
  std::vector<std::int64_t> sizes, strides;
  bool conjugate = false, negative = false;
};

struct PickledValue {
  // plain: a number, bool, text or None, whose text is `text`. opaque: a value without a text.
  enum class Kind : std::uint8_t {
    plain,
    opaque,
    text,
    integer,
    sequence,
    dictionary,
    tensor,
    storage,
    global,
    record  // an object of one of the caller's classes
  };
  Kind kind = Kind::opaque;
  std::string text = {};
  // Of an integer or a bool; of a tensor or storage: its index; of a record: the index of its class.
  std::int64_t number = 0;
  // Of a sequence; of a dictionary: key, value, key, value, ...; of a record: the sequence of its arguments,
  // and its state, if it has one.
  std::vector<std::uint32_t> items = {};
};

struct Pickled {
  std::vector<PickledValue> values;
  std::vector<PickledTensor> tensors;
  std::vector<PickledStorage> storages;
  std::uint32_t root = 0;
};

// refuse: throws an error with the given text, which names the byte. The first argument is true if the pickle
// is well-formed, but has something that this reader does not know.
using RefusePickle = std::function<void(bool unsupported, const std::string& why)>;
// records: "module.name" of classes and functions whose objects and results are read as records.
Pickled read_pickle(std::string_view pickle, const RefusePickle& refuse,
                    std::span<const std::string_view> records = {});

// A pickle of a dictionary of tensors by name.
std::string write_pickle(const std::vector<std::pair<std::string, PickledTensor>>& tensors);

}  // namespace weft::weights
