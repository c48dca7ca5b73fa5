// The header of a file in the format of safetensors (Hugging Face, 2022): a little-endian u64, that number of
// bytes of JSON (for each tensor its dtype, shape and offsets; "__metadata__" for notes), then the tensors'
// elements, little-endian and in C order, without gaps.
#pragma once

#include <weft/parallel/weights/checked_file.h>
#include <weft/parallel/weights/tensor_form.h>
#include <weft/rpc/core/export.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::weights {

struct SafetensorsHeader {
  TensorForms forms;
  std::map<std::string, std::uint64_t> places;  // bytes from the first element of the file
  std::map<std::string, std::string> notes;
  std::string text;  // the JSON
  std::uint64_t elements_at = 0, elements_bytes = 0;
};

// Checks all lengths against the size of the file before memory is allocated. failed_precondition, which
// names the file: it is damaged or not of this format. unsupported: LibTorch lacks a dtype of it.
WEFT_EXPORT SafetensorsHeader read_safetensors_header(const CheckedFile& file);

// Parses JSON of a file that may be hostile. failed_precondition, which names the file: the text is not JSON,
// a name occurs twice in an object, or values are nested more than 8 deep.
WEFT_EXPORT nlohmann::json parse_checked_json(const CheckedFile& file, const std::string& text);

// The JSON of tensors in this order, padded so that the elements are aligned. invalid_argument: the format
// cannot have them. extended: also dtypes that other programs may not know.
WEFT_EXPORT std::string safetensors_header_text(
    const std::vector<std::pair<std::string, TensorForm>>& tensors,
    const std::map<std::string, std::string>& notes, bool extended = false);

}  // namespace weft::weights
