#include <weft/parallel/training/internal/optimizer_archive.h>

#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include <sstream>
#include <utility>

namespace weft::training {

void drop_scratch_memory(torch::optim::OptimizerParamState& state) {
  if (auto* const lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(&state)) lbfgs->al(std::nullopt);
}

std::string archive_of(torch::optim::Optimizer& optimizer) {
  for (auto& [parameter, state] : optimizer.state()) drop_scratch_memory(*state);
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

void load_archive(const std::string& bytes, torch::optim::Optimizer& optimizer) {
  torch::serialize::InputArchive archive;
  std::istringstream stream(bytes);
  archive.load_from(stream);
  optimizer.load(archive);
}

}  // namespace weft::training
