#include <weft/rpc/tensor/dtype.h>

#include <weft/rpc/core/error.h>

#include <array>
#include <string>
#include <utility>

namespace weft::tensor {
namespace {

using c10::ScalarType;

constexpr std::array names{
    std::pair{ScalarType::Bool, std::string_view("bool")},
    std::pair{ScalarType::Byte, std::string_view("uint8")},
    std::pair{ScalarType::Char, std::string_view("int8")},
    std::pair{ScalarType::Short, std::string_view("int16")},
    std::pair{ScalarType::Int, std::string_view("int32")},
    std::pair{ScalarType::Long, std::string_view("int64")},
    std::pair{ScalarType::UInt16, std::string_view("uint16")},
    std::pair{ScalarType::UInt32, std::string_view("uint32")},
    std::pair{ScalarType::UInt64, std::string_view("uint64")},
    std::pair{ScalarType::Half, std::string_view("float16")},
    std::pair{ScalarType::BFloat16, std::string_view("bfloat16")},
    std::pair{ScalarType::Float, std::string_view("float32")},
    std::pair{ScalarType::Double, std::string_view("float64")},
    std::pair{ScalarType::ComplexHalf, std::string_view("complex32")},
    std::pair{ScalarType::ComplexFloat, std::string_view("complex64")},
    std::pair{ScalarType::ComplexDouble, std::string_view("complex128")},
    std::pair{ScalarType::Float8_e5m2, std::string_view("float8_e5m2")},
    std::pair{ScalarType::Float8_e4m3fn, std::string_view("float8_e4m3fn")},
    std::pair{ScalarType::Float8_e5m2fnuz, std::string_view("float8_e5m2fnuz")},
    std::pair{ScalarType::Float8_e4m3fnuz, std::string_view("float8_e4m3fnuz")},
};

}  // namespace

std::string_view dtype_name(ScalarType type) {
  for (const auto& [known, name] : names)
    if (known == type) return name;
  throw rpc::Error(rpc::ErrorKind::unsupported,
                   std::string("tensors of type ") + c10::toString(type) + " cannot be sent");
}

ScalarType dtype_from_name(std::string_view name) {
  for (const auto& [type, known] : names)
    if (known == name) return type;
  throw rpc::Error(rpc::ErrorKind::unsupported,
                   "tensors of type '" + std::string(name) + "' are not supported");
}

}  // namespace weft::tensor
