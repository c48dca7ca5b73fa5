// The parts of a State, except optimizers.
#include <weft/parallel/data_parallel/broadcast_state.h>
#include <weft/parallel/elastic/internal/tensor_memory.h>
#include <weft/parallel/elastic/state.h>
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
  void commit() override { memory_.store(tensors()); }
  void restore() override {
    memory_.load(tensors());
    drop_gradients();
  }
  void sync(const collectives::Group& group, int source) override {
    data_parallel::broadcast_parameters(group, *module_, source);
    drop_gradients();
  }

 private:
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> tensors = module_->parameters();
    for (at::Tensor& buffer : module_->buffers()) tensors.push_back(std::move(buffer));
    return tensors;
  }
  // They may be views of memory in which a collective has failed.
  void drop_gradients() const {
    for (const at::Tensor& parameter : module_->parameters()) parameter.mutable_grad() = at::Tensor();
  }

  const std::shared_ptr<torch::nn::Module> module_;
  TensorMemory memory_;
};

class TensorsPart final : public StatePart {
 public:
  explicit TensorsPart(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  std::string kind() const override { return std::to_string(tensors_.size()) + " tensors"; }
  void commit() override { memory_.store(tensors_); }
  void restore() override { memory_.load(tensors_); }
  void sync(const collectives::Group& group, int source) override {
    data_parallel::broadcast_tensors(group, tensors_, source).get();
  }

 private:
  const std::vector<at::Tensor> tensors_;
  TensorMemory memory_;
};

class SamplerPart final : public StatePart {
 public:
  explicit SamplerPart(ElasticSampler sampler) : sampler_(std::move(sampler)) {}
  std::string kind() const override { return "sampler of " + sampler_.description(); }
  void commit() override { commit_ = sampler_.progress(); }
  void restore() override { sampler_.set_progress(commit_); }
  void sync(const collectives::Group& group, int source) override {
    sampler_.set_progress(group.broadcast_object(sampler_.progress(), source).get());
  }
  void set_group(const collectives::Group& group) override { sampler_.set_group(group); }

 private:
  ElasticSampler sampler_;  // a handle
  EpochProgress commit_;
};

class GeneratorPart final : public StatePart {
 public:
  explicit GeneratorPart(at::Generator generator) : generator_(std::move(generator)) {}
  std::string kind() const override { return "generator"; }
  void commit() override {
    const std::lock_guard lock(generator_.mutex());
    commit_ = generator_.get_state();
  }
  void restore() override {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(commit_);
  }
  void sync(const collectives::Group& group, int source) override {
    at::Tensor state;
    {
      const std::lock_guard lock(generator_.mutex());
      state = generator_.get_state();
    }
    group.broadcast(state, source).get();
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state);
  }

 private:
  at::Generator generator_;
  at::Tensor commit_;
};

}  // namespace

std::shared_ptr<StatePart> module_part(std::shared_ptr<torch::nn::Module> module) {
  return std::make_shared<ModulePart>(std::move(module));
}
std::shared_ptr<StatePart> tensors_part(std::vector<at::Tensor> tensors) {
  return std::make_shared<TensorsPart>(std::move(tensors));
}
std::shared_ptr<StatePart> sampler_part(ElasticSampler sampler) {
  return std::make_shared<SamplerPart>(std::move(sampler));
}
std::shared_ptr<StatePart> generator_part(at::Generator generator) {
  return std::make_shared<GeneratorPart>(std::move(generator));
}

}  // namespace detail
}  // namespace weft::elastic
