#include "parameter_server/pull_push_mode.h"

#include <fmt/format.h>
#include <weft/rref/rref.h>

#include "fashion_mnist/images.h"
#include "parameter_server/model.h"
#include "parameter_server/schedule.h"

using namespace weft;

// --- The server's side ---

struct ParameterServer::Model {
  explicit Model(double learning_rate)
      : optimizer(network.parameters(), torch::optim::AdamOptions(learning_rate)) {}
  Network network;
  torch::optim::Adam optimizer;
};

ParameterServer::ParameterServer(double learning_rate, std::int32_t staleness)
    : model_(std::make_unique<Model>(learning_rate)), staleness_(static_cast<std::uint64_t>(staleness)) {}

ParameterServer::~ParameterServer() = default;

Snapshot ParameterServer::pull() const { return {version_, model_->network.parameters()}; }

bool ParameterServer::push(std::uint64_t version, std::vector<at::Tensor> gradients) {
  auto parameters = model_->network.parameters();
  if (version > version_ || gradients.size() != parameters.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "these gradients are not of this network");
  if (version_ - version > staleness_) return false;
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
  model_->optimizer.step();
  ++version_;
  return true;
}

void ParameterServer::set_learning_rate(double rate) {
  model_->optimizer.param_groups()[0].options().set_lr(rate);
}

// --- The trainer's side ---

namespace {

void load(const Network& network, const Snapshot& snapshot) {
  torch::NoGradGuard no_grad;
  auto parameters = network.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(snapshot.parameters[i]);
}

std::vector<at::Tensor> take_gradients(const Network& network) {
  std::vector<at::Tensor> gradients;
  for (auto& parameter : network.parameters())
    gradients.push_back(std::exchange(parameter.mutable_grad(), {}));
  return gradients;
}

rpc::Task<void> train(rref::RRef<ParameterServer> server, std::shared_ptr<Network> network,
                      const Settings& settings, Batches& batches, Report& report) {
  std::int64_t refused = 0;
  while (auto batch = batches.next()) {
    double loss = 0;
    for (bool applied = false; !applied; refused += applied ? 0 : 1) {
      const Snapshot snapshot = co_await server.call<&ParameterServer::pull>();
      load(*network, snapshot);
      auto root = torch::cross_entropy_loss(network->forward(batch->images), batch->labels);
      root.backward();
      loss = root.item().toDouble();
      applied = co_await server.call<&ParameterServer::push>(snapshot.version, take_gradients(*network));
    }
    if (co_await report.batch(batch->size(), loss))
      co_await server.call<&ParameterServer::set_learning_rate>(
          scheduled(settings.learning_rate, report.fraction()));
  }
  report.trained();
  if (refused > 0)
    fmt::print("{} batches were computed again: their parameters had become too old\n", refused);
}

}  // namespace

rpc::Task<void> run_pull_push(rpc::Agent& agent, const Settings& settings, Batches& batches,
                              const Dataset& test, Report& report) {
  auto server = rref::create<ParameterServer>(agent.peer("server"), rref::Named{"parameters"},
                                              settings.learning_rate, settings.staleness);
  auto network = std::make_shared<Network>();
  co_await train(server, network, settings, batches, report);
  load(*network, co_await server.call<&ParameterServer::pull>());
  co_await report.finish(accuracy(*network, test));
}
