// The parts of a State, except optimizers.
#include <weft/parallel/elastic/internal/tensor_memory.h>
#include <weft/parallel/elastic/internal/tensor_transfer.h>
#include <weft/parallel/elastic/state.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/rpc/codec/struct_codec.h>

#include <mutex>

namespace weft::elastic {

WEFT_CODEC(EpochProgress, epoch, processed)

namespace detail {
namespace {

class ModulePart final : public StatePart {
 public:
  explicit ModulePart(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}
  std::string kind() const override { return "module"; }
  void commit() override {
    memory_.store(tensors());
    trained_ = trained();
  }
  void restore() override {
    memory_.load(tensors());
    train(trained_);
    drop_gradients();
  }
  void mark() override {
    marked_buffers_.store(module_->buffers());
    marked_trained_ = trained();
  }
  void rewind() override {
    marked_buffers_.load(module_->buffers());
    train(marked_trained_);
    drop_gradients();
  }
  void sync(const collectives::Group& group, int source) override {
    training::broadcast_parameters(group, *module_, source);
    training::share_requires_grad(group, module_->parameters(), source);
    drop_gradients();
  }
  // Forward changes buffers, and needs the parameters that require grad, so these are sent at once.
  std::function<void()> sync_later(const collectives::Group& group, const SyncPlan& plan) override {
    training::broadcast_tensors(group, module_->buffers(), plan.source).get();
    training::share_requires_grad(group, module_->parameters(), plan.source);
    drop_gradients();
    return transfer_tensors(group, plan.later, module_->parameters());
  }

 private:
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> tensors = module_->parameters();
    for (at::Tensor& buffer : module_->buffers()) tensors.push_back(std::move(buffer));
    return tensors;
  }
  // A program may freeze and unfreeze parameters while it trains.
  std::vector<bool> trained() const {
    std::vector<bool> trained;
    for (const at::Tensor& parameter : module_->parameters()) trained.push_back(parameter.requires_grad());
    return trained;
  }
  void train(const std::vector<bool>& trained) const {
    const std::vector<at::Tensor> parameters = module_->parameters();
    for (std::size_t i = 0; i < trained.size(); ++i)
      if (parameters[i].requires_grad() != trained[i]) parameters[i].set_requires_grad(trained[i]);
  }
  // Gradients may be views of memory in which a collective has failed.
  void drop_gradients() const {
    for (const at::Tensor& parameter : module_->parameters()) parameter.mutable_grad() = at::Tensor();
  }

  const std::shared_ptr<torch::nn::Module> module_;
  TensorMemory memory_, marked_buffers_;
  std::vector<bool> trained_, marked_trained_;  // by parameter
};

class TensorsPart final : public StatePart {
 public:
  explicit TensorsPart(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  std::string kind() const override { return std::to_string(tensors_.size()) + " tensors"; }
  void commit() override { memory_.store(tensors_); }
  void restore() override { memory_.load(tensors_); }
  void mark() override { marked_.store(tensors_); }
  void rewind() override { marked_.load(tensors_); }
  void sync(const collectives::Group& group, int source) override {
    training::broadcast_tensors(group, tensors_, source).get();
  }

 private:
  const std::vector<at::Tensor> tensors_;
  TensorMemory memory_, marked_;
};

class SamplerPart final : public StatePart {
 public:
  explicit SamplerPart(ElasticSampler sampler) : sampler_(std::move(sampler)) {}
  std::string kind() const override { return "sampler of " + sampler_.description(); }
  void commit() override { commit_ = sampler_.progress(); }
  void restore() override { sampler_.set_progress(commit_); }
  void mark() override { mark_ = sampler_.progress(); }
  void rewind() override { sampler_.set_progress(mark_); }
  void sync(const collectives::Group& group, int source) override {
    sampler_.set_progress(group.broadcast_object(sampler_.progress(), source).get());
  }
  std::function<void()> sync_later(const collectives::Group& group, const SyncPlan& plan) override {
    std::vector<int> resting;
    for (const Transfer& transfer : plan.later) resting.push_back(transfer.to);
    sampler_.set_ranks(group.rank(), group.size(), std::move(resting));
    sync(group, plan.source);
    return {};
  }
  void set_group(const collectives::Group& group) override { sampler_.set_group(group); }
  bool in_round() const { return sampler_.in_round(); }

 private:
  ElasticSampler sampler_;  // a handle
  EpochProgress commit_, mark_;
};

class GeneratorPart final : public StatePart {
 public:
  explicit GeneratorPart(at::Generator generator) : generator_(std::move(generator)) {}
  std::string kind() const override { return "generator"; }
  void commit() override { commit_ = now(); }
  void restore() override { set(commit_); }
  void mark() override { mark_ = now(); }
  void rewind() override { set(mark_); }
  void sync(const collectives::Group& group, int source) override {
    const at::Tensor state = now();
    group.broadcast(state, source).get();
    set(state);
  }

 private:
  at::Tensor now() {
    const std::lock_guard lock(generator_.mutex());
    return generator_.get_state();
  }
  void set(const at::Tensor& state) {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state);
  }

  at::Generator generator_;
  at::Tensor commit_, mark_;
};

}  // namespace

std::shared_ptr<StatePart> module_part(std::shared_ptr<torch::nn::Module> module) {
  return std::make_shared<ModulePart>(std::move(module));
}
std::shared_ptr<StatePart> tensors_part(std::vector<at::Tensor> tensors) {
  return std::make_shared<TensorsPart>(std::move(tensors));
}
bool is_sampler(const StatePart& part) { return dynamic_cast<const SamplerPart*>(&part) != nullptr; }
bool in_round(const StatePart& part) {
  const auto* const sampler = dynamic_cast<const SamplerPart*>(&part);
  return sampler != nullptr && sampler->in_round();
}
std::shared_ptr<StatePart> sampler_part(ElasticSampler sampler) {
  return std::make_shared<SamplerPart>(std::move(sampler));
}
std::shared_ptr<StatePart> generator_part(at::Generator generator) {
  return std::make_shared<GeneratorPart>(std::move(generator));
}

}  // namespace detail
}  // namespace weft::elastic
