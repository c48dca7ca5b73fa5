// The matrix of gloo_process_test.cc: collectives, of which dtype, shape, reduction and how many ranks, what
// each rank's input is, and how far two right results may be apart. Pure, and the same in every run: the
// only random numbers are those of a generator whose seed is given, and inputs are a hash of case, rank and
// index, which gloo_oracle.py computes as well.
#pragma once

#include <weft/parallel/collectives/operation/reduce_op.h>

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace weft::collectives::testing {

// The layout of tensors in memory. expanded: only for inputs that are not also outputs. Other tensors of such
// a case are contiguous.
enum class Lie : std::uint8_t { contiguous, strided, expanded };

struct GlooCase {
  int number = 0;
  // a method of Group; send_recv: each rank sends to the next one and receives from the previous one
  std::string op;
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> shape;  // of a rank's tensor, or of its part for one rank
  int ranks = 1, root = 0;
  std::optional<ReduceOp::Kind> reduction;
  Lie lie = Lie::contiguous;
  std::int64_t period = 1;  // the input repeats after this number of elements
  // [rank][other]: the elements that the rank has for the other one
  std::vector<std::vector<std::int64_t>> sizes;

  std::int64_t size(int from, int to) const {
    return sizes[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
  }
  bool is(std::initializer_list<const char*> operations) const {
    return std::find(operations.begin(), operations.end(), op) != operations.end();
  }
  bool of_parts() const {  // the input has a part for each rank
    return is({"reduce_scatter", "reduce_scatter_v", "all_to_all", "all_to_all_v", "scatter"});
  }
  std::int64_t elements(int rank) const {  // in the input of the rank
    const auto& row = sizes[static_cast<std::size_t>(rank)];
    return of_parts() ? std::accumulate(row.begin(), row.end(), std::int64_t{0}) : size(rank, rank);
  }
  ReduceOp reduce_op(int rank) const {
    return *reduction == ReduceOp::Kind::premul_sum ? ReduceOp::premul_sum((rank + 1) / 2.0)
                                                    : ReduceOp{*reduction};
  }
  bool rounds() const {  // whether the result depends on the order of the operations
    return reduction && (at::isFloatingType(dtype) || at::isComplexType(dtype)) &&
           *reduction != ReduceOp::Kind::min && *reduction != ReduceOp::Kind::max;
  }
  std::string text() const {
    const char* const lies[] = {"contiguous", "strided", "expanded"};
    std::ostringstream out;
    out << "case " << number << ": " << op << " of " << at::toString(dtype) << at::IntArrayRef(shape)
        << " by " << ranks << ", root " << root << (reduction ? ", " + ReduceOp{*reduction}.name() : "")
        << ", " << lies[static_cast<std::size_t>(lie)];
    return out.str();
  }
};

inline const char* torch_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat8_e5m2:
      return "float8_e5m2";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    default:
      return "complex64";
  }
}

inline std::string json_of(const std::vector<GlooCase>& cases) {
  std::ostringstream out;
  const auto list = [&](const auto& values, auto write) {
    out << '[';
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i != 0) out << ", ";
      write(values[i]);
    }
    out << ']';
  };
  const auto number = [&](std::int64_t value) { out << value; };
  list(cases, [&](const GlooCase& c) {
    out << "\n{\"number\": " << c.number << ", \"op\": \"" << c.op << "\", \"dtype\": \""
        << torch_name(c.dtype) << "\", \"ranks\": " << c.ranks << ", \"root\": " << c.root
        << ", \"reduction\": \"" << (c.reduction ? ReduceOp{*c.reduction}.name() : "")
        << "\", \"period\": " << c.period << ", \"inputs\": ";
    std::vector<std::int64_t> inputs;
    for (int rank = 0; rank < c.ranks; ++rank) inputs.push_back(c.elements(rank));
    list(inputs, number);
    out << ", \"sizes\": ";
    list(c.sizes, [&](const auto& row) { list(row, number); });
    out << '}';
  });
  return out.str();
}

// --- The matrix of cases ---

class GlooMatrix {
 public:
  explicit GlooMatrix(std::uint64_t seed) : random_(seed) {}

  std::vector<GlooCase> cases() {
    const char* const operations[] = {"all_reduce",   "reduce",     "reduce_scatter", "reduce_scatter_v",
                                      "broadcast",    "all_gather", "all_gather_v",   "all_to_all",
                                      "all_to_all_v", "gather",     "scatter",        "send_recv"};
    std::vector<GlooCase> cases;
    for (int ranks = 1; ranks <= 8; ++ranks)
      for (const std::string op : operations)
        for (int i = 0; i < (op.find("reduce") != std::string::npos ? 7 : 3); ++i) {
          if (op == "send_recv" && ranks == 1) continue;
          cases.push_back(make(op, ranks));
          cases.back().number = static_cast<int>(cases.size()) - 1;
        }
    return cases;
  }

 private:
  // Draws the next card from a shuffled pack of `cards` cards. Each card is drawn once before any card is
  // drawn again, so that no choice is left out by chance.
  std::size_t draw(const std::string& pack, std::size_t cards) {
    std::vector<std::size_t>& left = packs_[pack];
    if (left.empty()) {
      left.resize(cards);
      std::iota(left.begin(), left.end(), std::size_t{0});
    }
    std::swap(left[random_() % left.size()], left.back());
    const std::size_t card = left.back();
    left.pop_back();
    return card;
  }
  template <class T>
  T one_of(const std::string& pack, const std::vector<T>& values) {
    return values[draw(pack, values.size())];
  }

  struct Meaning {
    at::ScalarType dtype;
    ReduceOp::Kind kind;
  };
  static std::vector<Meaning> meanings() {  // of those that Gloo has, too
    using Kind = ReduceOp::Kind;
    std::vector<Meaning> all{{at::kComplexFloat, Kind::sum}};
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar,
                                       at::kByte, at::kInt, at::kLong, at::kBool}) {
      for (const Kind kind : {Kind::sum, Kind::product, Kind::min, Kind::max}) all.push_back({dtype, kind});
      if (dtype != at::kBool) all.push_back({dtype, Kind::avg});
      if (at::isFloatingType(dtype)) {
        all.push_back({dtype, Kind::premul_sum});
      } else {
        for (const Kind kind : {Kind::bit_and, Kind::bit_or, Kind::bit_xor}) all.push_back({dtype, kind});
      }
    }
    return all;
  }

  GlooCase make(const std::string& op, int ranks) {
    GlooCase c;
    c.op = op;
    c.ranks = ranks;
    c.root = static_cast<int>(random_() % static_cast<unsigned>(ranks));
    if (op.find("reduce") != std::string::npos) {
      const Meaning meaning = one_of("meanings", meanings());
      c.dtype = meaning.dtype;
      c.reduction = meaning.kind;
    } else {
      c.dtype = one_of<at::ScalarType>(
          "dtypes", {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kFloat8_e5m2, at::kChar,
                     at::kByte, at::kShort, at::kInt, at::kLong, at::kBool, at::kComplexFloat});
    }
    c.shape = shape_of(c);
    c.lie = one_of<Lie>("lies of " + op, {Lie::contiguous, Lie::strided, Lie::expanded});
    if (c.shape.empty()) c.lie = Lie::contiguous;
    const std::int64_t n = c10::multiply_integers(c.shape);
    const auto count = static_cast<std::size_t>(ranks);
    c.sizes.assign(count, std::vector<std::int64_t>(count, n));
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to) {
        const int number = op == "all_gather_v"       ? from
                           : op == "reduce_scatter_v" ? to
                           : op == "all_to_all_v"     ? from + 2 * to
                                                      : -1;
        if (number >= 0) c.sizes[from][to] = n * (number % 3) / 2;
      }
    if (op.ends_with("_v")) c.shape = {n};
    // One row in memory represents all rows; with one dimension, one element represents all.
    if (c.lie == Lie::expanded && takes_expanded(c)) {
      c.period = c.shape.size() == 1 ? 1 : c.shape.back();
    } else {
      for (int rank = 0; rank < ranks; ++rank) c.period = std::max(c.period, c.elements(rank));
      if (c.lie == Lie::expanded) c.lie = Lie::contiguous;
    }
    return c;
  }
  static bool takes_expanded(const GlooCase& c) { return !c.is({"all_reduce", "reduce", "broadcast"}); }

  // Sizes below and above the limits at which plan/choice.cc and shm/ choose another algorithm: 32 KiB in
  // total or per rank, parts of 128 KiB, messages of 256 KiB, 1 MiB.
  std::vector<std::int64_t> shape_of(const GlooCase& c) {
    const auto item = static_cast<std::int64_t>(c10::elementSize(c.dtype));
    const std::int64_t share = c.of_parts() || c.is({"all_gather", "all_gather_v"}) ? c.ranks : 1;
    const auto bytes = [&](std::int64_t n) { return n / item; };
    switch (draw("shapes of " + c.op, 12)) {
      case 0:
        return {};
      case 1:
        return {0};
      case 2:
        return {1};
      case 3:
        return {3, 5};
      case 4:
        return {1023};
      case 5:
        return {std::max<std::int64_t>(1, bytes(32 << 10) / share)};
      case 6:
        return {std::max<std::int64_t>(1, bytes(32 << 10) / share) + 1};
      case 7:
        return {bytes(32 << 10) + 1};
      case 8:
        return {bytes(128 << 10) / share + 1};
      case 9:
        return {3, bytes(128 << 10) / 3 + 1};
      case 10:
        return {5, bytes(270'000) / share / 5 + 1};
      default:
        return {bytes(c.ranks <= 3 ? (1 << 20) + 100 : 140'000) / share +
                1};  // limits the time that Gloo needs
    }
  }

  std::mt19937_64 random_;
  std::map<std::string, std::vector<std::size_t>> packs_;  // the cards that are left in each pack
};

// --- Inputs of ranks ---

// 64-bit words that repeat after `period` words: the last steps of splitmix64.
inline at::Tensor hashes(int number, int rank, std::int64_t n, std::int64_t period) {
  at::Tensor words = at::empty({n}, at::kLong);
  auto* const out = words.data_ptr<std::int64_t>();
  const std::uint64_t seed = static_cast<std::uint64_t>(number * 64 + rank + 1) * 0xBF58476D1CE4E5B9;
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t x =
        static_cast<std::uint64_t>(i % std::max<std::int64_t>(1, period)) * 0x9E3779B97F4A7C15 + seed;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    out[i] = static_cast<std::int64_t>(x ^ x >> 31);
  }
  return words;
}

inline int digits_of(at::ScalarType dtype) {  // digits of the significand
  return dtype == at::kHalf ? 11 : dtype == at::kBFloat16 ? 8 : dtype == at::kDouble ? 53 : 24;
}

// The inputs of reductions: integers of any size; floating-point numbers with all their digits, far from the
// limits of their type. Factors of products are from 0.5 to 2.
inline at::Tensor numbers(const at::Tensor& words, at::ScalarType dtype, ReduceOp::Kind reduction) {
  if (dtype == at::kBool) return words.bitwise_and(1).to(dtype);
  if (!at::isFloatingType(dtype)) return words.to(dtype);
  const int digits = digits_of(dtype);
  at::Tensor values = at::empty(words.sizes(), at::kDouble);
  const auto* const in = words.data_ptr<std::int64_t>();
  auto* const out = values.data_ptr<double>();
  for (std::int64_t i = 0; i < words.numel(); ++i) {
    const auto low = static_cast<int>(in[i] & 7);
    if (reduction == ReduceOp::Kind::product) {
      const std::uint64_t fraction = static_cast<std::uint64_t>(in[i]) >> (65 - digits);
      const auto magnitude = static_cast<double>((std::uint64_t{1} << (digits - 1)) + fraction);
      out[i] = ((low & 2) != 0 ? -1 : 1) * std::ldexp(magnitude, (low & 1) - digits);
    } else {
      out[i] = std::ldexp(static_cast<double>(in[i] >> (64 - digits)), low - digits);
    }
  }
  return values.to(dtype);
}

// The input of a rank as a flat tensor.
inline at::Tensor input_of(const GlooCase& c, int rank) {
  const std::int64_t n = c.elements(rank);
  const auto words = [&](std::int64_t each) { return hashes(c.number, rank, each * n, each * c.period); };
  if (c.reduction && c.dtype == at::kComplexFloat)
    return numbers(words(2), at::kFloat, *c.reduction).view(at::kComplexFloat);
  if (c.reduction) return numbers(words(1), c.dtype, *c.reduction);
  if (c.dtype == at::kBool) return words(1).bitwise_and(1).to(c.dtype);
  // any bits, for operations that only move them
  const at::ScalarType bits[] = {at::kChar, at::kShort, at::kInt, at::kLong};
  const auto log = static_cast<std::size_t>(std::countr_zero(c10::elementSize(c.dtype)));
  return words(1).to(bits[log]).view(c.dtype);
}

// --- How far two results may be apart ---

inline at::Tensor as_doubles(const at::Tensor& tensor) {
  return (tensor.is_complex() ? at::view_as_real(tensor) : tensor).to(at::kDouble);
}

// The permitted difference of each element between two results of a case that rounds; `part` is the part that
// this rank has.
//
// With a unit roundoff u, the sum of P numbers in any order has an error of at most (P-1)·u·Σ|x| (divided by
// 1 - (P-1)·u). Two such sums may differ by twice that. For 16-bit types weft accumulates in float32 and
// rounds to the type at most twice (on a host, and after adding the parts of other hosts). Gloo rounds to the
// type after every addition. avg and premul_sum round once more on each side. The same holds for products,
// relative to the product.
inline at::Tensor permitted(const GlooCase& c, const at::Tensor& result, const at::Tensor& magnitudes) {
  using Kind = ReduceOp::Kind;
  const double u = std::ldexp(1.0, -digits_of(c.dtype));
  const bool is_narrow = c10::elementSize(c.dtype) == 2;
  const double more = *c.reduction == Kind::avg || *c.reduction == Kind::premul_sum ? 2 : 0;
  const double roundings = (c.ranks - 1) + (is_narrow ? 2 : c.ranks - 1) + more;
  const at::Tensor scale = *c.reduction == Kind::product ? as_doubles(result).abs() : magnitudes;
  return scale * (roundings * u / (1 - roundings * u));
}

// Σ|x| over all ranks, for the elements of which `rank` has a result.
inline at::Tensor magnitudes_of(const GlooCase& c, const std::vector<at::Tensor>& inputs, int rank) {
  at::Tensor sum;
  for (int other = 0; other < c.ranks; ++other) {
    at::Tensor values = inputs[static_cast<std::size_t>(other)];
    if (c.of_parts()) {
      std::int64_t begin = 0;
      for (int to = 0; to < rank; ++to) begin += c.size(other, to);
      values = values.narrow(0, begin, c.size(other, rank));
    }
    values = as_doubles(values).abs();
    if (*c.reduction == ReduceOp::Kind::premul_sum) values = values * ((other + 1) / 2.0);
    sum = sum.defined() ? sum + values : values;
  }
  return *c.reduction == ReduceOp::Kind::avg ? sum / c.ranks : sum;
}

}  // namespace weft::collectives::testing
