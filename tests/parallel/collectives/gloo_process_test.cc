// Every collective against c10d's Gloo backend, which a Python with PyTorch runs (gloo_oracle.py), over a
// random matrix of cases (gloo_cases.h); and the same bits on every rank and in every run.
#include <ATen/Parallel.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "tests/parallel/collectives/company.h"
#include "tests/parallel/collectives/gloo_cases.h"
#include "tests/support/torch_python.h"

namespace weft::collectives::testing {
namespace gloo_process_test {

constexpr std::uint64_t seed = 20'252;

// --- Results of Gloo ---

class Oracle {
 public:
  // Asks Gloo for all results. Returns an empty string, or why Gloo is not available. Call it while this
  // process has one thread.
  std::string ask(const std::vector<GlooCase>& cases) {
    std::ofstream(folder_.path() + "/cases.json") << json_of(cases);
    const std::string missing = test::run_torch_python(
        WEFT_SOURCE_DIR, "tests/parallel/collectives/gloo_oracle.py", {folder_.path()});
    if (!missing.empty()) return missing;
    for (int rank = 0; std::filesystem::exists(file(rank, ".index")); ++rank) {
      std::ifstream index(file(rank, ".index"));
      for (Place place; index >> place.number >> place.offset >> place.bytes;)
        places_[{place.number, rank}] = place;
    }
    return "";
  }

  // Returns the result as a flat tensor.
  at::Tensor result(const GlooCase& c, int rank) const {
    const Place& place = places_.at({c.number, rank});
    const auto item = static_cast<std::int64_t>(c10::elementSize(c.dtype));
    at::Tensor result = at::empty({place.bytes / item}, c.dtype);
    std::ifstream results(file(rank, ".results"), std::ios::binary);
    results.seekg(place.offset);
    results.read(static_cast<char*>(result.data_ptr()), place.bytes);
    if (!results || place.bytes % item != 0) throw std::runtime_error("Gloo's results are not as indexed");
    return result;
  }

 private:
  struct Place {
    int number = 0;
    std::int64_t offset = 0, bytes = 0;
  };
  std::string file(int rank, const char* kind) const {
    return folder_.path() + "/" + std::to_string(rank) + kind;
  }

  const test::TemporaryFolder folder_;
  std::map<std::pair<int, int>, Place> places_;  // by case and rank
};

// --- Results of weft ---

struct Side {
  Backend backend;
  std::unique_ptr<Company> company;
  std::vector<Group> groups = {};
};

// The tensors of one rank of a case, with their layout in memory.
class Own {
 public:
  Own(const GlooCase& c, const Group& group, bool placed) : case_(c), group_(group), placed_(placed) {}

  rpc::Future<void> begin(const at::Tensor& own) {
    const int rank = group_.rank(), ranks = case_.ranks, root = case_.root;
    const auto& shape = case_.shape;
    std::vector<std::int64_t> whole{ranks};
    whole.insert(whole.end(), shape.begin(), shape.end());
    if (case_.op == "all_reduce") return group_.all_reduce(in_place(own), case_.reduce_op(rank));
    if (case_.op == "reduce") return group_.reduce(in_place(own), root, case_.reduce_op(rank));
    if (case_.op == "broadcast") return group_.broadcast(in_place(own), root);
    if (case_.op == "all_gather") return group_.all_gather(room(whole), laid(own, shape));
    if (case_.op == "reduce_scatter")
      return group_.reduce_scatter(room(shape), laid(own, whole), case_.reduce_op(rank));
    if (case_.op == "all_to_all") return group_.all_to_all(room(whole), laid(own, whole));
    if (case_.op == "all_gather_v") return group_.all_gather_v(from_all(), laid(own, {own.numel()}));
    if (case_.op == "reduce_scatter_v")
      return group_.reduce_scatter_v(room({case_.size(rank, rank)}), parts(own), case_.reduce_op(rank));
    if (case_.op == "all_to_all_v") return group_.all_to_all_v(from_all(), parts(own));
    if (case_.op == "gather")
      return group_.gather(rank == root ? from_all() : Tensors{}, laid(own, shape), root);
    if (case_.op == "scatter")
      return group_.scatter(room(shape), rank == root ? parts(own) : Tensors{}, root);
    Futures both;
    both.push_back(group_.send(laid(own, shape), (rank + 1) % ranks));
    both.push_back(group_.recv(room(shape), (rank + ranks - 1) % ranks));
    return rpc::when_all(std::move(both));
  }

  at::Tensor result() const {  // as a flat tensor
    Tensors flat{at::empty({0}, case_.dtype)};
    for (const at::Tensor& output : outputs_) flat.push_back(output.reshape({-1}));
    return at::cat(flat);
  }

 private:
  at::Tensor memory(at::IntArrayRef shape) const {
    return placed_ ? group_.empty(shape, case_.dtype) : at::empty(shape, case_.dtype);
  }
  at::Tensor lying(at::IntArrayRef shape) const {
    if (case_.lie != Lie::strided) return memory(shape);
    if (shape.size() == 2) return memory({shape[1], shape[0]}).t();
    return memory({c10::multiply_integers(shape), 2}).select(1, 1).view(shape);
  }
  at::Tensor laid(const at::Tensor& values, at::IntArrayRef shape) const {
    if (case_.lie == Lie::expanded && values.numel() != 0)
      return memory({case_.period}).copy_(values.slice(0, 0, case_.period)).expand(shape);
    return lying(shape).copy_(values.view(shape));
  }
  at::Tensor in_place(const at::Tensor& values) {
    return outputs_.emplace_back(lying(case_.shape).copy_(values.view(case_.shape)));
  }
  at::Tensor room(at::IntArrayRef shape) { return outputs_.emplace_back(lying(shape).fill_(1)); }
  // If the sizes of a case differ, each tensor has one dimension.
  std::vector<std::int64_t> shape_of(int from, int to) const {
    return case_.op.ends_with("_v") ? std::vector<std::int64_t>{case_.size(from, to)} : case_.shape;
  }
  Tensors from_all() {
    for (int other = 0; other < case_.ranks; ++other) room(shape_of(other, group_.rank()));
    return outputs_;
  }
  Tensors parts(const at::Tensor& values) const {
    Tensors parts;
    std::int64_t begin = 0;
    for (int other = 0; other < case_.ranks; ++other) {
      const std::int64_t n = case_.size(group_.rank(), other);
      parts.push_back(laid(values.slice(0, begin, begin + n), shape_of(group_.rank(), other)));
      begin += n;
    }
    return parts;
  }

  const GlooCase& case_;
  const Group& group_;
  const bool placed_;
  Tensors outputs_;
};

// Runs the case on all ranks, which start one after the other from `first` on.
Tensors run(const GlooCase& c, const Tensors& inputs, const Side& side, int first = 0) {
  std::vector<Own> own;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    own.emplace_back(c, side.groups[rank], side.backend == Backend::placed);
  Futures in_progress;
  for (int i = 0; i < c.ranks; ++i) {
    const auto rank = static_cast<std::size_t>((first + i) % c.ranks);
    in_progress.push_back(own[rank].begin(inputs[rank]));
  }
  for (auto& future : in_progress) got(std::move(future));
  Tensors results;
  for (const Own& rank : own) results.push_back(rank.result());
  return results;
}

// Calls visit(case, inputs, sides) for each chosen case. `sides` has one element per backend that supports
// the number of ranks.
template <class Chosen, class Visit>
void for_each(const std::vector<GlooCase>& cases, Chosen chosen, Visit visit) {
  at::set_num_threads(1);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    std::vector<Side> sides;
    for (const Backend backend :
         {Backend::messages, Backend::memory, Backend::placed, Backend::hosts, Backend::uneven}) {
      const GroupBackend is = expected(backend, ranks);
      if (on_hosts(backend) ? is != GroupBackend::hosts : ranks == 1 && backend != Backend::messages)
        continue;  // the group would use a backend that another side uses already
      Side& side = sides.emplace_back(Side{backend, std::make_unique<Company>(ranks, backend)});
      side.groups = side.company->groups();
      ASSERT_EQ(side.groups[0].backend(), is);
    }
    for (const GlooCase& c : cases) {
      if (c.ranks != ranks || !chosen(c)) continue;
      SCOPED_TRACE(c.text());
      const Tensors inputs = of_ranks(ranks, [&](int rank) { return input_of(c, rank); });
      visit(c, inputs, sides);
      if (::testing::Test::HasFailure()) return;  // one failing case is enough
    }
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

// bound: the permitted difference. undefined: the results must have the same bits.
void expect_agreement(const at::Tensor& weft, const at::Tensor& gloo, const at::Tensor& bound) {
  ASSERT_EQ(weft.numel(), gloo.numel());
  if (!bound.defined()) {
    EXPECT_TRUE(same_bits(weft, gloo)) << weft.ne(gloo).sum().item<std::int64_t>() << " of " << weft.numel()
                                       << " elements differ, those that are NaN among them";
    return;
  }
  const at::Tensor ours = as_doubles(weft).flatten(), theirs = as_doubles(gloo).flatten();
  const at::Tensor wrong = (ours - theirs).abs().le(bound.flatten()).logical_not();
  if (!wrong.any().item<bool>()) return;
  const auto first = wrong.to(at::kInt).argmax().item<std::int64_t>();
  ADD_FAILURE() << wrong.sum().item<std::int64_t>() << " of " << wrong.numel()
                << " numbers are too far apart; #" << first << ": weft has " << ours[first].item<double>()
                << ", Gloo " << theirs[first].item<double>();
}

TEST(GlooOracle, AgreesWithEveryCollective) {
  const std::vector<GlooCase> cases = GlooMatrix(seed).cases();
  ASSERT_GE(cases.size(), 300u);
  Oracle oracle;
  if (const std::string missing = oracle.ask(cases); !missing.empty()) GTEST_SKIP() << missing;
  const auto all = [](const GlooCase&) { return true; };
  for_each(cases, all, [&](const GlooCase& c, const Tensors& inputs, const std::vector<Side>& sides) {
    Tensors right, bounds(inputs.size());
    for (int rank = 0; rank < c.ranks; ++rank) {
      right.push_back(oracle.result(c, rank));
      // reduce leaves the tensors of other ranks unchanged
      if (c.rounds() && (c.op != "reduce" || rank == c.root))
        bounds[static_cast<std::size_t>(rank)] = permitted(c, right.back(), magnitudes_of(c, inputs, rank));
    }
    for (const Side& side : sides) {
      const Tensors results = run(c, inputs, side);
      for (std::size_t rank = 0; rank < results.size(); ++rank) {
        SCOPED_TRACE(::testing::PrintToString(side.backend) + ", rank " + std::to_string(rank));
        expect_agreement(results[rank], right[rank], bounds[rank]);
      }
    }
  });
}

// The second run uses new objects, and ranks start in another order.
TEST(GlooOracle, ResultsAreTheSameBitsOnEveryRankAndInEveryRun) {
  const std::vector<GlooCase> cases = GlooMatrix(seed).cases();
  const auto rounds = [](const GlooCase& c) { return c.rounds(); };
  std::map<std::pair<int, Backend>, Tensors> before;
  for_each(cases, rounds, [&](const GlooCase& c, const Tensors& inputs, const std::vector<Side>& sides) {
    for (const Side& side : sides) {
      const Tensors& results = before[{c.number, side.backend}] = run(c, inputs, side);
      if (c.op != "all_reduce") continue;
      for (const at::Tensor& result : results) EXPECT_TRUE(same_bits(result, results[0])) << side.backend;
    }
  });
  EXPECT_GE(before.size(), 100u);
  for_each(cases, rounds, [&](const GlooCase& c, const Tensors& inputs, const std::vector<Side>& sides) {
    for (const Side& side : sides) {
      const Tensors results = run(c, inputs, side, c.ranks / 2 + 1);
      for (std::size_t rank = 0; rank < results.size(); ++rank)
        EXPECT_TRUE(same_bits(results[rank], before.at({c.number, side.backend})[rank]))
            << side.backend << ", rank " << rank;
    }
  });
}

// The matrix exists so that no combination is omitted by chance.
TEST(GlooOracle, TheMatrixHasEveryCombination) {
  std::map<std::string, int> found;
  const std::vector<GlooCase> cases = GlooMatrix(seed).cases();
  for (const GlooCase& c : cases) {
    const std::int64_t n = c10::multiply_integers(c.shape);
    const auto bytes = static_cast<std::int64_t>(c10::elementSize(c.dtype)) * n;
    for (const std::string& what : {std::string(torch_name(c.dtype)), c.op + " by " + std::to_string(c.ranks),
                                    c.op + (n == 0 ? ", empty" : ""),
                                    std::string(bytes > 1 << 20    ? "more than 1 MiB"
                                                : bytes > 32 << 10 ? "more than 32 KiB"
                                                : n == 1           ? "one"
                                                                   : "few"),
                                    c.op + (c.lie == Lie::strided ? ", strided" : ""),
                                    c.op + (c.lie == Lie::expanded ? ", expanded" : "")})
      ++found[what];
    if (c.reduction) ++found[ReduceOp{*c.reduction}.name() + " of " + torch_name(c.dtype)];
  }
  for (const char* const dtype :
       {"float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"})
    for (const char* const op : {"sum", "avg", "product", "min", "max"})
      EXPECT_GE(found[std::string(op) + " of " + dtype], 1) << op << " of " << dtype;
  for (const char* const what : {"more than 1 MiB", "more than 32 KiB", "one", "few", "bool", "complex64",
                                 "int16", "float8_e5m2", "bit_and of int32", "bit_or of uint8",
                                 "bit_xor of int64", "premul_sum of float32", "premul_sum of float16"})
    EXPECT_GE(found[what], 1) << what;
  for (const std::string op :
       {"all_reduce", "reduce", "reduce_scatter", "reduce_scatter_v", "broadcast", "all_gather",
        "all_gather_v", "all_to_all", "all_to_all_v", "gather", "scatter", "send_recv"}) {
    for (int ranks = 2; ranks <= 8; ++ranks) EXPECT_GE(found[op + " by " + std::to_string(ranks)], 3) << op;
    EXPECT_GE(found[op + ", empty"], 1) << op;
    EXPECT_GE(found[op + ", strided"], 1) << op;
    if (op != "all_reduce" && op != "reduce" && op != "broadcast") {
      EXPECT_GE(found[op + ", expanded"], 1) << op;
    }
  }
}

}  // namespace gloo_process_test
}  // namespace weft::collectives::testing
