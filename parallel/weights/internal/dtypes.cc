#include <weft/parallel/weights/internal/dtypes.h>

#include <algorithm>

namespace weft::weights {
namespace {

constexpr Dtype dtypes[] = {
    {at::kDouble, "float64", "DoubleStorage", "F64"},
    {at::kFloat, "float32", "FloatStorage", "F32"},
    {at::kHalf, "float16", "HalfStorage", "F16"},
    {at::kBFloat16, "bfloat16", "BFloat16Storage", "BF16"},
    {at::kFloat8_e4m3fn, "float8_e4m3fn", nullptr, "F8_E4M3"},
    {at::kFloat8_e5m2, "float8_e5m2", nullptr, "F8_E5M2"},
    {at::kFloat8_e4m3fnuz, "float8_e4m3fnuz", nullptr, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2fnuz, "float8_e5m2fnuz", nullptr, "F8_E5M2FNUZ"},
    {at::kFloat8_e8m0fnu, "float8_e8m0fnu", nullptr, "F8_E8M0"},
    {at::kFloat4_e2m1fn_x2, "float4_e2m1fn_x2", nullptr, "F4", false, 2},
    {at::kLong, "int64", "LongStorage", "I64"},
    {at::kInt, "int32", "IntStorage", "I32"},
    {at::kShort, "int16", "ShortStorage", "I16"},
    {at::kChar, "int8", "CharStorage", "I8"},
    {at::kUInt64, "uint64", nullptr, "U64"},
    {at::kUInt32, "uint32", nullptr, "U32"},
    {at::kUInt16, "uint16", nullptr, "U16"},
    {at::kByte, "uint8", "ByteStorage", "U8"},
    {at::kBool, "bool", "BoolStorage", "BOOL"},
    {at::kComplexFloat, "complex64", "ComplexFloatStorage", "C64"},
    {at::kComplexDouble, "complex128", "ComplexDoubleStorage", "C128", true},
    {at::kComplexHalf, "complex32", nullptr, "C32", true},
};

template <class Is>
const Dtype* find_dtype(Is is) {
  const auto* found = std::find_if(std::begin(dtypes), std::end(dtypes), is);
  return found == std::end(dtypes) ? nullptr : found;
}

}  // namespace

const Dtype* dtype_of(at::ScalarType type) {
  return find_dtype([&](const Dtype& each) { return each.type == type; });
}

const Dtype* dtype_of_safetensors(std::string_view name) {
  return find_dtype([&](const Dtype& each) { return each.safetensors == name; });
}

const Dtype* dtype_of_torch(std::string_view name) {
  return find_dtype([&](const Dtype& each) { return each.torch == name; });
}

const Dtype* dtype_of_storage(std::string_view name) {
  return find_dtype([&](const Dtype& each) { return each.storage != nullptr && each.storage == name; });
}

std::string name_of(at::ScalarType type) {
  const Dtype* const dtype = dtype_of(type);
  return dtype != nullptr ? dtype->torch : c10::toString(type);
}

}  // namespace weft::weights
