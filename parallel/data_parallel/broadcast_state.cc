#include <weft/parallel/data_parallel/broadcast_state.h>

#include <torch/serialize/archive.h>

#include <sstream>

namespace weft::data_parallel {

void broadcast_optimizer_state(const collectives::Group& group, torch::optim::Optimizer& optimizer,
                               int source) {
  std::string state;
  if (group.rank() == source) {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    state = std::move(stream).str();
  }
  state = group.broadcast_object(state, source).get();
  if (group.rank() == source) return;
  torch::serialize::InputArchive archive;
  std::istringstream stream(state);
  archive.load_from(stream);
  optimizer.load(archive);
}

}  // namespace weft::data_parallel
