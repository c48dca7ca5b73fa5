#include <weft/parallel/collectives/bucket/bucket.h>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace weft::collectives::bucket::testing {
namespace bucket_test {

const std::vector<std::pair<Element, c10::ScalarType>> types{{Element::float16, torch::kHalf},
                                                             {Element::bfloat16, torch::kBFloat16},
                                                             {Element::float32, torch::kFloat},
                                                             {Element::float64, torch::kDouble}};

bool is_narrow(c10::ScalarType type) { return type == torch::kHalf || type == torch::kBFloat16; }

Piece piece(const at::Tensor& tensor) {
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel())};
}

// Equal as values, with the sign of zero, and NaN where there is NaN.
::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor fine = (got == wanted).logical_and(got.signbit() == wanted.signbit());
  const at::Tensor wrong = fine.logical_or(got.isnan().logical_and(wanted.isnan())).logical_not().nonzero();
  if (wrong.numel() == 0) return ::testing::AssertionSuccess();
  const at::Tensor first = wrong[0];
  return ::testing::AssertionFailure()
         << wrong.size(0) << " differ, first of them " << first.item<std::int64_t>() << ": "
         << got[first.item<std::int64_t>()].item<double>() << " for "
         << wanted[first.item<std::int64_t>()].item<double>();
}

at::Tensor flattened(const std::vector<at::Tensor>& tensors, Element from, Element to, c10::ScalarType type,
                     double scale) {
  std::vector<Piece> pieces;
  std::int64_t count = 0;
  for (const at::Tensor& tensor : tensors) {
    pieces.push_back(piece(tensor));
    count += tensor.numel();
  }
  at::Tensor flat = torch::full({count}, 77, type);
  flatten(flat.data_ptr(), pieces, {.pieces = from, .flat = to, .scale = scale});
  return flat;
}

// Every bit pattern of 16 bits.
at::Tensor all_narrow(c10::ScalarType type) {
  return torch::arange(-32768, 32768, torch::kInt32).to(torch::kInt16).view(type);
}

// Values at, between and beside those of both narrow formats, beyond and below them too.
at::Tensor awkward(c10::ScalarType type) {
  std::vector<at::Tensor> parts;
  for (const auto narrow : {torch::kHalf, torch::kBFloat16}) {
    const at::Tensor values = all_narrow(narrow).to(torch::kFloat);
    const at::Tensor next = values.view(torch::kInt32).add(1 << (narrow == torch::kHalf ? 12 : 15));
    parts.insert(parts.end(), {values, next.view(torch::kFloat), next.add(1).view(torch::kFloat),
                               next.sub(1).view(torch::kFloat)});
  }
  torch::manual_seed(3);
  parts.push_back(torch::randn({9973}) * torch::pow(10., torch::randint(-40, 39, {9973})).to(torch::kFloat));
  return torch::cat(parts).to(type);
}

// What LibTorch makes of it: the product in float32, or float64 where either side is.
at::Tensor oracle(const at::Tensor& input, c10::ScalarType to, double scale) {
  const bool wide = input.scalar_type() == torch::kDouble || to == torch::kDouble;
  return input.to(wide ? torch::kDouble : torch::kFloat).mul(scale).to(to);
}

TEST(Bucket, PairsOfTypesAreLibTorchs) {
  for (const auto& [from, from_type] : types) {
    for (const auto& [to, to_type] : types) {
      // LibTorch goes from float64 to 16 bits by way of float32, which rounds twice: with a power of two as
      // the scale what it is given has no more digits than a float32 (see OnceFromFloat64 for the others).
      const bool twice = is_narrow(to_type) && from_type == torch::kDouble;
      for (const double scale : {1.0, 0.125, twice ? -4.0 : -1.0 / 3, twice ? 0.5 : 1e-3}) {
        const at::Tensor input = is_narrow(from_type) ? all_narrow(from_type) : awkward(from_type);
        const at::Tensor got = flattened({input}, from, to, to_type, scale);
        EXPECT_TRUE(same(got, oracle(input, to_type, scale)))
            << from_type << " to " << to_type << " times " << scale;
      }
    }
  }
}

TEST(Bucket, OnceFromFloat64) {
  struct Case {
    double value;
    std::uint16_t half, bfloat16;
  };
  for (const Case& one : std::vector<Case>{{1 + 0x1p-11 + 0x1p-40, 0x3C01, 0x3F80},
                                           {1 + 0x1p-11, 0x3C00, 0x3F80},
                                           {1 + 0x1p-8 + 0x1p-45, 0x3C04, 0x3F81},
                                           {1 + 0x1p-8, 0x3C04, 0x3F80},
                                           {1 + 0x3p-8, 0x3C0C, 0x3F82},
                                           {65519.99999999, 0x7BFF, 0x4780},
                                           {65520, 0x7C00, 0x4780},
                                           {0x1p-25, 0x0000, 0x3300},
                                           {-0x1p-25 - 0x1p-60, 0x8001, 0xB300},
                                           {0x1p-1074, 0x0000, 0x0000},
                                           {-1e300, 0xFC00, 0xFF80},
                                           {0x1p-134 + 0x1p-160, 0x0000, 0x0001},
                                           {0x1p-134, 0x0000, 0x0000}}) {
    const at::Tensor input = torch::tensor({one.value}, torch::kDouble);
    const auto bits = [&](Element to, c10::ScalarType type) {
      return static_cast<std::uint16_t>(
          flattened({input}, Element::float64, to, type, 1).view(torch::kInt16)[0].item<std::int16_t>());
    };
    EXPECT_EQ(bits(Element::float16, torch::kHalf), one.half) << std::hexfloat << one.value;
    EXPECT_EQ(bits(Element::bfloat16, torch::kBFloat16), one.bfloat16) << std::hexfloat << one.value;
  }
}

TEST(Bucket, NanHasNoPayload) {
  const float nan = std::bit_cast<float>(0xFFC1'2345u);
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor input = torch::empty({2});
  input.data_ptr<float>()[0] = nan;
  input.data_ptr<float>()[1] = -infinity;  // times 0
  const auto bits = [&](Element to, c10::ScalarType type, c10::ScalarType word) {
    const at::Tensor words = flattened({input}, Element::float32, to, type, 0).view(word);
    EXPECT_EQ(words[0].item<std::int64_t>(), words[1].item<std::int64_t>());
    return words[0].item<std::int64_t>();
  };
  EXPECT_EQ(bits(Element::float16, torch::kHalf, torch::kInt16), 0x7E00);
  EXPECT_EQ(bits(Element::bfloat16, torch::kBFloat16, torch::kInt16), 0x7FC0);
  EXPECT_EQ(bits(Element::float32, torch::kFloat, torch::kInt32), 0x7FC0'0000);
  EXPECT_EQ(bits(Element::float64, torch::kDouble, torch::kInt64), 0x7FF8'0000'0000'0000);
}

TEST(Bucket, PiecesFollowEachOther) {
  torch::manual_seed(5);
  std::vector<at::Tensor> tensors;
  for (const std::int64_t count : {1, 0, 7, 1000, 3, 0, 64}) tensors.push_back(torch::randn({count}));
  const at::Tensor flat = flattened(tensors, Element::float32, Element::bfloat16, torch::kBFloat16, 0.25);
  EXPECT_TRUE(same(flat, torch::cat(tensors).mul(0.25).to(torch::kBFloat16)));

  std::vector<at::Tensor> back;
  std::vector<Piece> pieces;
  for (const at::Tensor& tensor : tensors) {
    back.push_back(torch::full({tensor.numel() + 1}, 77, torch::kDouble));  // one more, to stay
    pieces.push_back({back.back().data_ptr(), static_cast<std::size_t>(tensor.numel())});
  }
  unflatten(pieces, flat.data_ptr(), {.pieces = Element::float64, .flat = Element::bfloat16, .scale = 3});
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t count = tensors[i].numel();
    EXPECT_TRUE(same(back[i].narrow(0, 0, count), flat.narrow(0, begin, count).to(torch::kDouble).mul(3)));
    EXPECT_EQ(back[i][count].item<double>(), 77);
    begin += count;
  }
}

TEST(Bucket, ThereAndBackIsTheSame) {
  for (const auto& [from, from_type] : types) {
    const at::Tensor input = is_narrow(from_type) ? all_narrow(from_type) : awkward(from_type);
    const at::Tensor flat = flattened({input}, from, Element::float64, torch::kDouble, 1);
    const at::Tensor back = torch::empty_like(input);
    unflatten(std::vector<Piece>{piece(back)}, flat.data_ptr(), {.pieces = from, .flat = Element::float64});
    EXPECT_TRUE(same(back, input)) << from_type;
  }
}

}  // namespace bucket_test
}  // namespace weft::collectives::bucket::testing
