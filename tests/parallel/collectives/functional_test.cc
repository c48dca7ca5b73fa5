// Gradients of recorded collectives, on ranks that are threads, against the same arithmetic in one process.
#include <weft/parallel/collectives/functional.h>

#include <torch/torch.h>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace functional_test {

using functional::Copies;

at::Tensor input_of(int rank, at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank + 1));
  return at::randn(sizes, generator, at::kDouble);
}
// The loss of a rank. It differs between ranks and is not linear.
at::Tensor loss_of(int rank, const at::Tensor& output) {
  return ((output + 0.1 * (rank + 1)).pow(3) * (rank + 1)).sum();
}

void expect_near(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  EXPECT_TRUE(at::allclose(a, b, 1e-10, 1e-10)) << what << "\n" << a << "\n" << b;
}

struct Case {
  std::string name;
  std::function<at::Tensor(const Group&, const at::Tensor&)> on_rank;
  std::function<Tensors(const Tensors&)> alone;  // computes the outputs of all ranks from their inputs
};

at::Tensor sum(const Tensors& all) { return at::stack(all).sum(0); }
Tensors each(const Tensors& all, const std::function<at::Tensor(std::int64_t)>& f) {
  Tensors outputs;
  for (std::size_t rank = 0; rank < all.size(); ++rank) outputs.push_back(f(static_cast<std::int64_t>(rank)));
  return outputs;
}
std::int64_t count(const Tensors& all) { return static_cast<std::int64_t>(all.size()); }
Tensors parts_for(const Tensors& all, std::int64_t rank, std::int64_t dim) {
  Tensors parts;
  for (const at::Tensor& one : all)
    parts.push_back(one.chunk(count(all), dim)[static_cast<std::size_t>(rank)]);
  return parts;
}
// Rank r sends 1 + (r + i) % 2 rows to rank i. The input has more rows than are sent.
std::vector<std::int64_t> rows_for(int rank, int ranks) {
  std::vector<std::int64_t> rows;
  for (int i = 0; i < ranks; ++i) rows.push_back(1 + (rank + i) % 2);
  return rows;
}
std::int64_t total(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::vector<Case> cases() {
  namespace f = functional;
  return {
      {"all_reduce", [](const Group& group, const at::Tensor& x) { return f::all_reduce(group, x); },
       [](const Tensors& all) { return each(all, [&](auto) { return sum(all); }); }},
      {"all_reduce avg of an input that is not contiguous",
       [](const Group& group, const at::Tensor& x) { return f::all_reduce(group, x.t(), ReduceOp::avg); },
       [](const Tensors& all) { return each(all, [&](auto) { return sum(all).t() / count(all); }); }},
      {"all_reduce of several",
       [](const Group& group, const at::Tensor& x) {
         const Tensors outputs = f::all_reduce(group, Tensors{x, x[0].square()});
         return outputs[0] * outputs[1];
       },
       [](const Tensors& all) {
         return each(all, [&](auto) {
           return sum(all) * sum(each(all, [&](auto rank) { return all[std::size_t(rank)][0].square(); }));
         });
       }},
      {"all_gather", [](const Group& group, const at::Tensor& x) { return f::all_gather(group, x); },
       [](const Tensors& all) { return each(all, [&](auto) { return at::cat(all); }); }},
      {"all_gather along the last",
       [](const Group& group, const at::Tensor& x) { return f::all_gather(group, x, -1); },
       [](const Tensors& all) { return each(all, [&](auto) { return at::cat(all, 1); }); }},
      {"reduce_scatter", [](const Group& group, const at::Tensor& x) { return f::reduce_scatter(group, x); },
       [](const Tensors& all) { return each(all, [&](auto rank) { return sum(parts_for(all, rank, 0)); }); }},
      {"reduce_scatter avg along the last",
       [](const Group& group, const at::Tensor& x) { return f::reduce_scatter(group, x, -1, ReduceOp::avg); },
       [](const Tensors& all) {
         return each(all, [&](auto rank) { return sum(parts_for(all, rank, 1)) / count(all); });
       }},
      {"all_to_all", [](const Group& group, const at::Tensor& x) { return f::all_to_all(group, x); },
       [](const Tensors& all) {
         return each(all, [&](auto rank) { return at::cat(parts_for(all, rank, 0)); });
       }},
      {"all_to_all from one dimension to another",
       [](const Group& group, const at::Tensor& x) { return f::all_to_all(group, x, 1, 0); },
       [](const Tensors& all) {
         return each(all, [&](auto rank) { return at::cat(parts_for(all, rank, 1), 0); });
       }},
      {"all_to_all_v",
       [](const Group& group, const at::Tensor& x) {
         const auto rows = rows_for(group.rank(), group.size());  // symmetric
         return f::all_to_all_v(group, x.narrow(0, 0, total(rows)), rows, rows);
       },
       [](const Tensors& all) {
         const int ranks = static_cast<int>(all.size());
         return each(all, [&](auto rank) {
           Tensors rows;
           for (int from = 0; from < ranks; ++from) {
             const auto sent = rows_for(from, ranks);
             const auto begin = std::accumulate(sent.begin(), sent.begin() + rank, std::int64_t{0});
             rows.push_back(all[std::size_t(from)].narrow(0, begin, sent[std::size_t(rank)]));
           }
           return at::cat(rows);
         });
       }},
      {"broadcast",
       [](const Group& group, const at::Tensor& x) { return f::broadcast(group, x, group.size() - 1); },
       [](const Tensors& all) { return each(all, [&](auto) { return all.back() + 0 * sum(all); }); }},
      {"reduce", [](const Group& group, const at::Tensor& x) { return f::reduce(group, x, 0); },
       [](const Tensors& all) {
         return each(all, [&](auto rank) { return rank == 0 ? sum(all) : at::zeros_like(all[0]); });
       }},
  };
}

class Functional : public ::testing::TestWithParam<std::tuple<int, Backend>> {
 protected:
  const int ranks = std::get<0>(GetParam());
  Company company{ranks, std::get<1>(GetParam())};
  std::vector<Group> groups = company.groups();
  const std::vector<std::int64_t> sizes{12, 12};  // the sizes of inputs
};
INSTANTIATE_TEST_SUITE_P(Ranks, Functional,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(backends)));

// Compares outputs, gradients, and gradients of gradients.
TEST_P(Functional, GradientsEqualThoseOfOneProcess) {
  for (const Case& each_case : cases()) {
    Tensors inputs, losses;
    for (int rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank, sizes).requires_grad_());
    const Tensors outputs = each_case.alone(inputs);
    for (int rank = 0; rank < ranks; ++rank) losses.push_back(loss_of(rank, outputs[std::size_t(rank)]));
    const Tensors gradients =
        torch::autograd::grad({sum(losses)}, inputs, {}, std::nullopt, /*create_graph=*/true);
    at::Tensor squares = at::zeros({}, at::kDouble);
    for (const at::Tensor& gradient : gradients) squares = squares + gradient.square().sum();
    const Tensors second = torch::autograd::grad({squares}, inputs);
    on_ranks(groups, [&](const Group& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      const at::Tensor x = input_of(group.rank(), sizes).requires_grad_();
      const at::Tensor y = each_case.on_rank(group, x);
      const at::Tensor gradient =
          torch::autograd::grad({loss_of(group.rank(), y)}, {x}, {}, std::nullopt, true)[0];
      expect_near(y, outputs[rank], each_case.name);
      expect_near(gradient, gradients[rank], each_case.name + ", gradient");
      expect_near(torch::autograd::grad({gradient.square().sum()}, {x})[0], second[rank],
                  each_case.name + ", second gradient");
    });
  }
}

// Megatron's MLP: the first weight is split by columns, the second one by rows.
TEST_P(Functional, APairOfConjugatesTrainsPartsOfALayer) {
  namespace f = functional;
  const auto weights = [&] {
    return Tensors{input_of(20, {12, 24}).requires_grad_(), input_of(21, {24, 5}).requires_grad_()};
  };
  const Tensors whole = weights();
  const at::Tensor x = input_of(22, {12, 12}).requires_grad_();
  const at::Tensor expected = (x.mm(whole[0]).tanh()).mm(whole[1]);
  loss_of(0, expected).backward();
  const auto part = [&](const at::Tensor& tensor, const Group& group, std::int64_t dim) {
    return tensor.detach().chunk(group.size(), dim)[std::size_t(group.rank())].clone();
  };
  on_ranks(groups, [&](const Group& group) {
    // The ranks have either equal inputs, or each a part of the rows (sequence parallel).
    for (const bool by_rows : {false, true}) {
      const at::Tensor columns = part(whole[0], group, 1).requires_grad_();
      const at::Tensor rows = part(whole[1], group, 0).requires_grad_();
      const at::Tensor own = (by_rows ? part(x, group, 0) : x.detach().clone()).requires_grad_();
      const at::Tensor input = by_rows ? f::all_gather(group, own) : f::copy(group, own);
      const at::Tensor products = input.mm(columns).tanh().mm(rows);
      const at::Tensor output =
          by_rows ? f::all_gather(group, f::reduce_scatter(group, products), 0, Copies::same)
                  : f::all_reduce(group, products, ReduceOp::sum, Copies::same);
      expect_near(output, expected, "output");
      loss_of(0, output).backward();
      expect_near(columns.grad(), part(whole[0].grad(), group, 1), "columns");
      expect_near(rows.grad(), part(whole[1].grad(), group, 0), "rows");
      expect_near(own.grad(), by_rows ? part(x.grad(), group, 0) : x.grad(), "input");
    }
  });
}

// An embedding that is split along a dimension, and joined again.
TEST_P(Functional, SplitAndGatherOfEqualCopies) {
  namespace f = functional;
  const at::Tensor whole = input_of(1, sizes).requires_grad_();
  loss_of(1, whole.square()).backward();
  on_ranks(groups, [&](const Group& group) {
    for (const std::int64_t dim : {0, 1}) {
      const at::Tensor x = whole.detach().clone().requires_grad_();
      const at::Tensor y = f::all_gather(group, f::split(group, x, dim).square(), dim, Copies::same);
      loss_of(1, y).backward();
      expect_near(x.grad(), whole.grad(), "dimension " + std::to_string(dim));
    }
  });
}

// Even and odd ranks have separate groups.
TEST_P(Functional, GradientsStayWithinAGroupOfSomeRanks) {
  on_ranks(groups, [&](const Group& all) {
    const Group group = all.split(all.rank() % 2).get().value();
    const at::Tensor x = input_of(all.rank(), sizes).requires_grad_();
    const Tensors y = functional::all_reduce(group, Tensors{x, 2 * x}, ReduceOp::avg);
    (loss_of(all.rank(), y[0]) + y[1].sum()).backward();
    Tensors inputs, losses;
    for (int rank = all.rank() % 2; rank < all.size(); rank += 2)
      inputs.push_back(input_of(rank, sizes).requires_grad_());
    for (int i = 0; i < group.size(); ++i)
      losses.push_back(loss_of(all.rank() % 2 + 2 * i, sum(inputs) / group.size()) +
                       2 * sum(inputs).sum() / group.size());
    sum(losses).backward();
    expect_near(x.grad(), inputs[std::size_t(group.rank())].grad(), "");
  });
}

// Without grad there is no node, and the input stays as it is.
TEST_P(Functional, RecordsNothingWithoutGrad) {
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor x = input_of(group.rank(), sizes);
    EXPECT_FALSE(functional::all_reduce(group, x).requires_grad());
    EXPECT_TRUE(at::equal(x, input_of(group.rank(), sizes)));
  });
}

TEST(FunctionalArguments, AreChecked) {
  namespace f = functional;
  Company company(2);
  on_ranks(company.groups(), [](const Group& group) {
    const at::Tensor x = at::ones({3, 4});
    const auto refused = [](const auto& call, const std::string& words) {
      test::expect_error(call, ErrorKind::invalid_argument, words);
    };
    refused([&] { f::all_reduce(group, x, ReduceOp::max); }, "max, expected sum or avg");
    refused([&] { f::reduce_scatter(group, x); }, "0 has 3 elements, expected a multiple of 2");
    refused([&] { f::all_gather(group, x, 2); }, "dimension 2 of a tensor with 2 dimensions");
    refused([&] { f::all_to_all_v(group, x, {1, 1}, {1, 1}); }, "has 2 rows");
    refused([&] { f::all_to_all_v(group, x, {3}, {1, 1}); }, "1 counts");
    refused([&] { f::all_reduce(group, Tensors{x, x.to(at::kDouble)}); }, "");
    EXPECT_TRUE(f::all_reduce(group, Tensors{}).empty());
  });
}

}  // namespace functional_test
}  // namespace weft::collectives::testing
