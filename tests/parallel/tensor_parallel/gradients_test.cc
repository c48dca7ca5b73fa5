// A model over a mesh of two stages, each split over two ranks, against the whole model in one process.
#include <weft/parallel/tensor_parallel/gradients.h>

#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/tensor_parallel/linear.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::gradients_test {
namespace {

using namespace testing;
using collectives::DeviceMesh;

constexpr std::int64_t width = 8;
constexpr double infinity = std::numeric_limits<double>::infinity();

// A stage has a column-parallel layer, a row-parallel layer, and a norm that all ranks have.
struct Stage : torch::nn::Module {
  explicit Stage(const Group& group) {
    up = register_module("up", ColumnParallelLinear(group, width, 2 * width,
                                                    ColumnParallelOptions{.generator = generator(1)}));
    down = register_module(
        "down", RowParallelLinear(group, 2 * width, width, RowParallelOptions{.generator = generator(2)}));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    to(at::kDouble);
  }
  ColumnParallelLinear up{nullptr};
  RowParallelLinear down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

class Gradients : public ::testing::Test {
 protected:
  // Returns gradients of the whole model, by stage and by the names of placements().
  static at::Tensor whole_gradient(int stage, const Placement& parameter) {
    std::vector<std::int64_t> sizes = parameter.tensor.sizes().vec();
    for (const Split& split : parameter.splits) sizes[static_cast<std::size_t>(split.dim)] = split.size;
    return numbers(
        sizes, std::hash<std::string>{}(parameter.name) % 1000 + 1000 * static_cast<std::uint64_t>(stage));
  }

  template <class F>
  void on_mesh(F f) {
    on_ranks(groups, [&](const Group& world) {
      const std::vector<DeviceMesh::Dimension> grid{{"pipeline", 2}, {"tensor", 2}};
      const auto mesh = DeviceMesh::create(world, grid).get();
      const Stage stage(mesh.group("tensor"));
      const auto parameters = placements(stage);
      for (const Placement& each : parameters) {
        at::Tensor gradient = whole_gradient(mesh.coordinate("pipeline"), each);
        for (const Split& split : each.splits) gradient = split.part_of(gradient);
        each.tensor.mutable_grad() = gradient;
      }
      f(world, mesh, parameters);
    });
  }

  // The result of torch::nn::utils::clip_grad_norm_ for the whole model.
  static double clip_whole(const std::vector<Placement>& like, double max_norm, double norm_type,
                           std::map<std::pair<int, std::string>, at::Tensor>& gradients) {
    std::vector<at::Tensor> leaves;
    for (const int stage : {0, 1})
      for (const Placement& each : like) {
        const at::Tensor gradient = whole_gradient(stage, each);
        leaves.push_back(at::zeros_like(gradient).requires_grad_());
        leaves.back().mutable_grad() = gradient;
        gradients[{stage, each.name}] = gradient;
      }
    return torch::nn::utils::clip_grad_norm_(leaves, max_norm, norm_type);
  }

  Company company{4, Backend::memory};
  std::vector<Group> groups = company.groups();
};

TEST_F(Gradients, TheNormIsThatOfTheWholeModel) {
  on_mesh([&](const Group&, const DeviceMesh& mesh, const std::vector<Placement>& parameters) {
    for (const double norm_type : {2.0, 1.0, 3.0, infinity})
      for (const double max_norm : {0.5, 1e6}) {
        std::map<std::pair<int, std::string>, at::Tensor> expected;
        const double norm = clip_whole(parameters, max_norm, norm_type, expected);
        std::vector<at::Tensor> before;
        for (const Placement& each : parameters) before.push_back(each.tensor.grad().clone());
        const std::vector<GradientGroup> over{{mesh.group("tensor")}, {mesh.group("pipeline"), true}};
        EXPECT_NEAR(clip_grad_norm(parameters, over, max_norm, norm_type), norm, 1e-10);
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const Placement& each = parameters[i];
          at::Tensor clipped = expected[{mesh.coordinate("pipeline"), each.name}];
          for (const Split& split : each.splits) clipped = split.part_of(clipped);
          expect_close({each.tensor.grad()}, {clipped});
          each.tensor.grad().copy_(before[i]);
        }
      }
  });
}

TEST_F(Gradients, AnotherGroupOfTheSameMembersIsEquivalent) {
  on_mesh([&](const Group&, const DeviceMesh& mesh, const std::vector<Placement>& parameters) {
    const auto other = mesh.group("tensor").split(0).get();
    std::map<std::pair<int, std::string>, at::Tensor> expected;
    const double norm = clip_whole(parameters, 1, 2, expected);
    EXPECT_NEAR(clip_grad_norm(parameters, {{*other}, {mesh.group("pipeline"), true}}, 1), norm, 1e-10);
  });
}

TEST_F(Gradients, ASplitThatIsNotReducedIsRefused) {
  on_mesh([&](const Group&, const DeviceMesh& mesh, const std::vector<Placement>& parameters) {
    test::expect_error([&] { clip_grad_norm(parameters, {{mesh.group("pipeline"), true}}, 1); },
                       ErrorKind::invalid_argument, "up.weight is split over 'tensor'");
  });
}

TEST_F(Gradients, ParametersWithoutGradientsAreSkipped) {
  on_mesh([&](const Group&, const DeviceMesh& mesh, const std::vector<Placement>& parameters) {
    for (const Placement& each : parameters) each.tensor.mutable_grad() = at::Tensor();
    const std::vector<GradientGroup> over{{mesh.group("tensor")}, {mesh.group("pipeline"), true}};
    EXPECT_EQ(clip_grad_norm(parameters, over, 1), 0);
  });
}

TEST_F(Gradients, ANormThatIsNotFiniteIsTheSameOnAllRanks) {
  for (const double norm_type : {2.0, infinity})
    on_mesh([&](const Group& world, const DeviceMesh& mesh, const std::vector<Placement>& parameters) {
      if (world.rank() == 3) parameters[0].tensor.grad()[0] = std::nan("");
      const std::vector<GradientGroup> over{{mesh.group("tensor")}, {mesh.group("pipeline"), true}};
      EXPECT_TRUE(std::isnan(clip_grad_norm(parameters, over, 1, norm_type)));
    });
}

TEST_F(Gradients, AnInfiniteGradientOfOneRankIsReportedToAll) {
  for (const int bad : {-1, 0, 1, 2, 3})
    on_mesh([&](const Group& world, const DeviceMesh& mesh, const std::vector<Placement>& parameters) {
      const at::Tensor before = parameters[1].tensor.grad().clone();
      if (world.rank() == bad) parameters[0].tensor.grad()[0] = infinity;
      EXPECT_EQ(unscale_gradients(parameters, {mesh.group("tensor"), mesh.group("pipeline")}, 4), bad == -1);
      if (bad == -1) expect_close({parameters[1].tensor.grad()}, {before / 4});
    });
}

// Both stages have a copy with the summed gradient, as GroupPipeline gives it.
TEST(TiedParameters, CountOnceAndAreScaledOnBothStages) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    const auto with_gradient = [](const at::Tensor& gradient) {
      const at::Tensor parameter = at::zeros_like(gradient).requires_grad_();
      parameter.mutable_grad() = gradient.clone();
      return parameter;
    };
    const at::Tensor tied = numbers({3}, 1),
                     other = numbers({5}, static_cast<std::uint64_t>(2 + group.rank()));
    const std::vector<Placement> parameters{
        {.name = "tied", .tensor = with_gradient(tied), .counts_elsewhere = group.rank() == 1},
        {.name = "other", .tensor = with_gradient(other)}};
    const double norm = at::cat({tied, numbers({5}, 2), numbers({5}, 3)}).norm().item<double>();
    EXPECT_NEAR(clip_grad_norm(parameters, {{group, true}}, 0.5), norm, 1e-10);
    for (const auto& [parameter, gradient] : {std::pair{parameters[0], tied}, {parameters[1], other}})
      expect_close({parameter.tensor.grad()}, {gradient * (0.5 / (norm + 1e-6))});
  });
}

}  // namespace
}  // namespace weft::tensor_parallel::gradients_test
