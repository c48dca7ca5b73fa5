// Training with weft's DistributedDataParallel against PyTorch's, which a Python with PyTorch runs
// (torch_ddp_oracle.py): the same parameters and buffers after 20 steps.
#include <fstream>
#include <string>

#include "examples/ddp_train/resnet.h"
#include "tests/parallel/data_parallel/ranks.h"
#include "tests/support/torch_python.h"

namespace weft::data_parallel::torch_ddp_process_test {
namespace {

using namespace testing;

constexpr int ranks = 2, steps = 20;

struct Transformer : torch::nn::Module {
  Transformer() {
    words = register_module("words", torch::nn::Embedding(30, 16));
    for (int i = 0; i < 2; ++i)
      layers->push_back(torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0)));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(16, 5));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = words(tokens);
    for (const auto& layer : *layers) x = layer->as<torch::nn::TransformerEncoderLayer>()->forward(x, {}, {});
    return head(x);
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::Linear head{nullptr};
};

struct Lstm : torch::nn::Module {
  Lstm() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(8, 12).num_layers(2)));
    head = register_module("head", torch::nn::Linear(12, 5));
  }
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(lstm(x))); }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};

// The initial values of both sides.
struct Model {
  std::string name;
  std::shared_ptr<torch::nn::Module> initial;
  at::Tensor inputs, targets;  // by step and rank
  double rate = 0.05;
};

// The statistics of batch norms, without their counts: Module::to(kDouble) converts these too.
std::vector<std::string> buffers_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& buffer : module.named_buffers())
    if (buffer.key().find("running_") != std::string::npos) names.push_back(buffer.key());
  return names;
}

std::string list_of(at::IntArrayRef sizes) {
  std::string list;
  for (const std::int64_t size : sizes) list += (list.empty() ? "" : ", ") + std::to_string(size);
  return "[" + list + "]";
}

std::string quoted(const std::string& text) { return '"' + text + '"'; }

std::string describe(const Model& model) {
  std::string parameters, buffers;
  for (const auto& parameter : model.initial->named_parameters())
    parameters += (parameters.empty() ? "" : ", ") + ("{\"name\": " + quoted(parameter.key())) +
                  ", \"shape\": " + list_of(parameter.value().sizes()) + "}";
  for (const std::string& name : buffers_of(*model.initial))
    buffers += (buffers.empty() ? "" : ", ") + quoted(name);
  return quoted(model.name) + ": {\"parameters\": [" + parameters + "], \"buffers\": [" + buffers +
         "], \"inputs\": " + list_of(model.inputs.sizes()) +
         ", \"targets\": " + list_of(model.targets.sizes()) +
         ", \"words\": " + (model.inputs.scalar_type() == at::kLong ? "true" : "false") +
         ", \"rate\": " + std::to_string(model.rate) + "}";
}

void write(std::ostream& out, const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().contiguous();
  out.write(static_cast<const char*>(whole.const_data_ptr()), static_cast<std::streamsize>(whole.nbytes()));
}

class AgainstPyTorch : public ::testing::Test {
 protected:
  AgainstPyTorch() {
    at::set_num_threads(1);
    torch::manual_seed(1);
    const auto add = [&](const std::string& name, std::shared_ptr<torch::nn::Module> module,
                         const at::Tensor& inputs, at::IntArrayRef output) {
      module->to(at::kDouble);
      std::vector<std::int64_t> shape{steps, ranks};
      shape.insert(shape.end(), output.begin(), output.end());
      models.push_back({name, std::move(module), inputs, at::randn(shape, at::kDouble)});
    };
    add("resnet18", std::make_shared<ResNet18>(10, 4), at::randn({steps, ranks, 4, 1, 12, 12}, at::kDouble),
        {4, 10});
    add("transformer", std::make_shared<Transformer>(), at::randint(30, {steps, ranks, 6, 3}, at::kLong),
        {6, 3, 5});
    add("lstm", std::make_shared<Lstm>(), at::randn({steps, ranks, 6, 3, 8}, at::kDouble), {6, 3, 5});
  }
  std::string ask() {
    std::string descriptions;
    for (const Model& model : models) {
      descriptions += (descriptions.empty() ? "" : ", ") + describe(model);
      std::ofstream data(folder.path() + "/" + model.name + ".data", std::ios::binary);
      for (const at::Tensor& parameter : model.initial->parameters()) write(data, parameter);
      write(data, model.inputs);
      write(data, model.targets);
    }
    std::ofstream(folder.path() + "/models.json")
        << "{\"ranks\": " << ranks << ", \"models\": {" << descriptions << "}}";
    return test::run_torch_python(WEFT_SOURCE_DIR, "tests/parallel/data_parallel/torch_ddp_oracle.py",
                                  {folder.path()});
  }
  // weft's parameters and buffers after the steps, against PyTorch's of that rank.
  void compare(const Model& model, const torch::nn::Module& trained, int rank) const {
    std::ifstream results(folder.path() + "/" + model.name + "." + std::to_string(rank), std::ios::binary);
    const auto expect = [&](const std::string& name, const at::Tensor& own) {
      const at::Tensor theirs = at::empty(own.sizes(), at::kDouble);
      results.read(static_cast<char*>(theirs.data_ptr()), static_cast<std::streamsize>(theirs.nbytes()));
      ASSERT_TRUE(results) << name;
      EXPECT_TRUE(at::allclose(own, theirs, 1e-8, 1e-8))
          << model.name << ", rank " << rank << ": " << name << " differs by "
          << (own - theirs).abs().max().item<double>();
    };
    for (const auto& parameter : trained.named_parameters()) expect(parameter.key(), parameter.value());
    const auto buffers = trained.named_buffers();
    for (const std::string& name : buffers_of(trained)) expect(name, buffers[name]);
  }
  template <class Net>
  void train_and_compare(const Model& model, const std::shared_ptr<Net>& net, const Group& group,
                         const Options& options) const {
    {
      const at::NoGradGuard no_grad;
      const auto initial = model.initial->parameters();
      const auto own = net->parameters();
      for (std::size_t i = 0; i < own.size(); ++i) own[i].copy_(initial[i]);
    }
    DistributedDataParallel ddp{group, net, options};
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(model.rate).momentum(0.9));
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const at::Tensor output = ddp.forward(model.inputs[step][group.rank()]);
      torch::mse_loss(output, model.targets[step][group.rank()]).backward();
      optimizer.step();
    }
    compare(model, *net, group.rank());
  }

  const test::TemporaryFolder folder;
  std::vector<Model> models;
};

TEST_F(AgainstPyTorch, TwentyStepsGiveTheSameParametersAndBuffers) {
  if (const std::string missing = ask(); !missing.empty()) GTEST_SKIP() << missing;
  Options small;
  small.bucket_bytes = {2000, 8000};
  Options fixed = small;
  fixed.static_graph = true;
  Company company(ranks, Backend::memory);
  for (const Options& options : {Options{}, small, fixed})
    on_ranks(company.groups(), [&](const Group& group) {
      const auto in_double = [](auto net) {
        net->to(at::kDouble);
        return net;
      };
      train_and_compare(models[0], in_double(std::make_shared<ResNet18>(10, 4)), group, options);
      train_and_compare(models[1], in_double(std::make_shared<Transformer>()), group, options);
      train_and_compare(models[2], in_double(std::make_shared<Lstm>()), group, options);
    });
}

}  // namespace
}  // namespace weft::data_parallel::torch_ddp_process_test
