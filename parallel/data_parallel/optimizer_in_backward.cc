#include <weft/parallel/data_parallel/optimizer_in_backward.h>

#include <string>

namespace weft::data_parallel {

OptimizerInBackward::OptimizerInBackward(Replica& replica, const Make& make, bool keeps_gradients)
    : replica_(replica), parameters_(replica.parameters()) {
  for (const at::Tensor& parameter : parameters_) optimizers_.push_back(make(parameter));
  replica_.set_on_reduced([this, keeps_gradients](std::size_t index) {
    optimizers_[index]->step();
    if (!keeps_gradients) parameters_[index].mutable_grad().reset();
  });
}

OptimizerInBackward::~OptimizerInBackward() { replica_.set_on_reduced(nullptr); }

void OptimizerInBackward::save(torch::serialize::OutputArchive& archive) const {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::OutputArchive one;
    optimizers_[i]->save(one);
    archive.write(std::to_string(i), one);
  }
}

void OptimizerInBackward::load(torch::serialize::InputArchive& archive) {
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::InputArchive one;
    archive.read(std::to_string(i), one);
    optimizers_[i]->load(one);
  }
}

}  // namespace weft::data_parallel
