// SignatureBytes: a signature as bytes, in the form that a flight recorder stores. The bytes are converted to
// text only when a dump is written.
//
// For this process only: the bytes are no file format. A value.
#pragma once

#include <weft/parallel/collectives/operation/internal/signature.h>

#include <c10/util/SmallVector.h>

#include <string_view>

namespace weft::collectives {

class WEFT_EXPORT SignatureBytes {
 public:
  explicit SignatureBytes(const Signature& signature);
  // Valid as long as this object exists.
  std::string_view view() const {
    return {reinterpret_cast<const char*>(words_.data()), words_.size() * sizeof(std::int64_t)};
  }

  static std::string text(std::string_view bytes);  // Signature::text(); a FlightOperation::Render

 private:
  // Operation, dtype, root, reduction, device, refused; then for each shape its dimensions and their sizes.
  c10::SmallVector<std::int64_t, 16> words_;
};

}  // namespace weft::collectives
