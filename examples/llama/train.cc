#include "llama/train.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/pipeline/group_pipeline.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/sharded/checkpoint/weights.h>
#include <weft/parallel/sharded/fully_sharded_data_parallel.h>
#include <weft/parallel/sharded/fully_sharded_optimizer.h>
#include <weft/parallel/tensor_parallel/gradients.h>
#include <weft/parallel/weights/deferred.h>

#include <memory>
#include <utility>

#include "fashion_mnist/learning_rate.h"
#include "fashion_mnist/loss_curve.h"
#include "fashion_mnist/progress.h"
#include "llama/model.h"
#include "llama/tokenizer.h"

using namespace weft;
namespace fs = std::filesystem;

namespace {

// A model whose parameters are split over the ranks of a mesh. They are zero, and no rank has the whole
// model.
class Model {
 public:
  virtual ~Model() = default;
  // The mean loss of this rank's rows of a batch. Its gradients are then those of all rows.
  virtual at::Tensor compute(const at::Tensor& tokens, const at::Tensor& following) = 0;
  virtual const sharded::ShardedUnits& units() const = 0;
  // The name in a file of a parameter of the units.
  virtual std::string name_of(const std::string& parameter) const { return parameter; }
};

// Without a pipeline: a rank gathers one layer at a time.
class WholeModel final : public Model {
 public:
  WholeModel(const collectives::DeviceMesh& mesh, const Config& config, const Settings& settings)
      : microbatches_(settings.microbatches),
        loss_(llama_loss(mesh.group("tensor"), config)),
        llama_(split(mesh,
                     weights::deferred([&] { return std::make_shared<Llama>(mesh.group("tensor"), config); }),
                     settings)) {}

  at::Tensor compute(const at::Tensor& tokens, const at::Tensor& following) override {
    at::Tensor sum = at::zeros({});
    const auto targets = following.chunk(microbatches_);
    for (int i = 0; const at::Tensor& part : tokens.chunk(microbatches_)) {
      const at::Tensor loss = loss_({llama_.forward(part)}, {targets[i++]}) / microbatches_;
      loss.backward();
      sum += loss.detach();
    }
    return sum;
  }
  const sharded::ShardedUnits& units() const override { return llama_.units(); }

 private:
  template <class Deferred>
  static sharded::FullyShardedDataParallel<Llama> split(const collectives::DeviceMesh& mesh,
                                                        const Deferred& deferred, const Settings& settings) {
    sharded::Options options{.values = deferred.second, .initialize = false};
    if (settings.bfloat16) options.mixed_precision = {.parameters = at::kBFloat16, .reduction = at::kFloat};
    return {mesh.group("data"), deferred.first, options};
  }

  const int microbatches_;
  const pipeline::Loss loss_;
  sharded::FullyShardedDataParallel<Llama> llama_;
};

class Stages final : public Model {
 public:
  Stages(const collectives::DeviceMesh& mesh, const Config& config, const Settings& settings)
      : deferred_(weights::deferred([&] { return graph_of(mesh, config, settings); })),
        pipeline_(mesh.group("pipeline"), deferred_.first, schedule_of(settings),
                  {.loss = llama_loss(mesh.group("tensor"), config),
                   .data_parallel = mesh.group("data"),
                   .sharded = options_of(deferred_.second, settings)}) {}

  at::Tensor compute(const at::Tensor& tokens, const at::Tensor& following) override {
    return pipeline_.step({tokens}, {following}).loss;
  }
  const sharded::ShardedUnits& units() const override { return pipeline_.sharded(); }
  std::string name_of(const std::string& parameter) const override { return name_in_file(parameter); }

 private:
  static sharded::ShardOptions options_of(std::shared_ptr<weights::InitialValues> values,
                                          const Settings& settings) {
    sharded::ShardOptions options{.values = std::move(values), .initialize = false};
    if (settings.bfloat16) {
      options.compute = at::kBFloat16;
      options.reduction = at::kFloat;
    }
    return options;
  }
  static schedule::Schedule schedule_of(const Settings& settings) {
    return schedule::generate(settings.schedule,
                              {.ranks = settings.pipeline, .microbatches = settings.microbatches});
  }
  static pipeline::StageGraph graph_of(const collectives::DeviceMesh& mesh, const Config& config,
                                       const Settings& settings) {
    const auto schedule = schedule_of(settings);
    const int own = mesh.group("pipeline").rank();
    return pipeline::cut(llama_layers(mesh.group("tensor"), config),
                         {.cuts = llama_cuts(config, schedule.stages()),
                          .built = pipeline::stages_of(schedule, own),
                          .seed = settings.seed});
  }

  const std::pair<pipeline::StageGraph, std::shared_ptr<weights::InitialValues>> deferred_;
  pipeline::GroupPipeline pipeline_;
};

std::unique_ptr<Model> create_model(const collectives::DeviceMesh& mesh, const Config& config,
                                    const Settings& settings) {
  if (settings.pipeline > 1) return std::make_unique<Stages>(mesh, config, settings);
  return std::make_unique<WholeModel>(mesh, config, settings);
}

// This rank's parts of all parameters, by the names that these have in a file.
sharded::SlicedState parts_of(const Model& model) {
  sharded::SlicedState state, renamed;
  model.units().add_to(state, /*prefix=*/"");
  for (const auto& [name, part] : state.tensors) renamed.tensors[model.name_of(name)] = part;
  return renamed;
}

// Parts of a text, in an order that is drawn anew for each pass over the text.
class Batches {
 public:
  Batches(const Tokenizer& tokenizer, const Settings& settings)
      : tokens_(at::tensor(tokenizer.encode(read_file(settings.text)))),
        context_(settings.context),
        rows_(settings.batch_size),
        generator_(at::detail::createCPUGenerator(settings.seed)) {
    if (parts() < rows_)
      throw std::runtime_error(
          fmt::format("{} has {} tokens: expected at least {}, a batch of {} parts of {} tokens",
                      settings.text, tokens_.numel(), rows_ * context_ + 1, rows_, context_));
  }
  std::int64_t per_pass() const { return parts() / rows_; }

  // int64 [rows, context + 1]
  at::Tensor next() {
    if (at_ % per_pass() == 0) order_ = at::randperm(parts(), generator_, at::kLong);
    const at::Tensor firsts = order_.narrow(0, at_++ % per_pass() * rows_, rows_) * context_;
    return tokens_.take(firsts.unsqueeze(1) + at::arange(context_ + 1));
  }

 private:
  std::int64_t parts() const { return (tokens_.numel() - 1) / context_; }

  const at::Tensor tokens_;
  const std::int64_t context_, rows_;
  at::Generator generator_;
  at::Tensor order_;
  std::int64_t at_ = 0;  // the next batch
};

// Copies config.json, the files of the tokenizer, and all others that are not weights.
void copy_other_files(const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  if (fs::equivalent(from, to))
    throw std::invalid_argument(
        fmt::format("--out {}: expected another folder than that of the model", to.string()));
  for (const auto& file : fs::directory_iterator(from)) {
    const std::string name = file.path().filename().string(), extension = file.path().extension().string();
    if (file.is_regular_file() && name.find(".safetensors") == std::string::npos && extension != ".bin" &&
        extension != ".pth")
      fs::copy_file(file, to / name, fs::copy_options::overwrite_existing);
  }
}

}  // namespace

void train(rpc::Agent& agent, const Settings& wanted) {
  const auto world = collectives::Group::create(agent).get();
  const Config config = read_config(wanted.model);
  Settings settings = fitted(wanted, config, world.size());
  if (world.rank() == 0) copy_other_files(settings.model, settings.out);
  Batches batches(Tokenizer(settings.model), settings);
  if (settings.steps == 0) settings.steps = batches.per_pass();
  const auto mesh =
      collectives::DeviceMesh::create(
          world, {{"data", settings.data}, {"pipeline", settings.pipeline}, {"tensor", settings.tensor}})
          .get();
  const collectives::Group &data = mesh.group("data"), &stages = mesh.group("pipeline"),
                           &tensor = mesh.group("tensor");

  const auto model = create_model(mesh, config, settings);
  const auto source = weights::open_source(settings.model);
  const sharded::SlicedState state = parts_of(*model);
  sharded::load_weights(world, state, *source, {.names = names_in_model(config), .convert = true});
  sharded::FullyShardedOptimizer optimizer(
      model->units(), torch::optim::AdamWOptions(settings.learning_rate).weight_decay(settings.weight_decay));

  const std::int64_t tokens = settings.batch_size * settings.context;  // of a batch
  Progress progress(agent.name(), settings.steps * tokens, "tokens");
  std::vector<Point> points;
  for (std::int64_t step = 0; step < settings.steps; ++step) {
    const at::Tensor rows = batches.next().chunk(data.size())[data.rank()];
    optimizer.zero_grad();
    const at::Tensor loss =
        model->compute(rows.narrow(1, 0, settings.context), rows.narrow(1, 1, settings.context))
            .to(at::kDouble);
    tensor_parallel::clip_grad_norm(model->units().placements(), {{data, true}, {stages, true}, {tensor}},
                                    settings.clip);
    optimizer.set_learning_rate(cosine_rate(step, settings.steps, settings.learning_rate));
    optimizer.step();

    data.all_reduce(loss, collectives::ReduceOp::avg).get();
    if (world.rank() != 0) continue;
    progress.advance(tokens, loss.item<double>());
    points.push_back({agent.name(), progress.state().images, 0, progress.seconds(), loss.item<double>()});
  }

  if (world.rank() == 0) {
    progress.finish();
    write_loss_curve(points, "Fine-tuning of " + settings.model, settings.out, /*digits=*/9);
  }
  sharded::save_weights(world, state, fs::path(settings.out) / "model.safetensors",
                        {.notes = {{"format", "pt"}},  // transformers expects it
                         .dtype = source->form("model.embed_tokens.weight").dtype});
}
