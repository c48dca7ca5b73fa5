// --mode pull-push: the classical asynchronous parameter server (Li et al. 2014; Dean et al. 2012). The
// server owns the whole network and its optimizer. A trainer pulls the parameters, computes gradients with
// its copy, and pushes them.
#pragma once

#include <ATen/core/Tensor.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <memory>
#include <vector>

#include "fashion_mnist/dataset.h"
#include "parameter_server/report.h"
#include "parameter_server/settings.h"

struct Snapshot {
  std::uint64_t version = 0;  // the number of pushes that were applied
  std::vector<at::Tensor> parameters;
};
WEFT_CODEC(Snapshot, version, parameters)

// The object is behind a reference on the server, so its calls run one at a time, and no snapshot is taken
// during a step.
class ParameterServer {
 public:
  // learning_rate: of Adam. staleness: the largest number of steps by which gradients may be late.
  ParameterServer(double learning_rate, std::int32_t staleness);
  ~ParameterServer();

  Snapshot pull() const;
  // Makes a step with gradients that were computed with this version. Returns false, and changes nothing, if
  // the version is more than `staleness` steps old. The trainer then pulls and computes again.
  bool push(std::uint64_t version, std::vector<at::Tensor> gradients);
  void set_learning_rate(double rate);

  using Service =
      weft::rpc::Service<"parameter_server", weft::rpc::Constructor<double, std::int32_t>,
                         weft::rpc::Method<"pull", &ParameterServer::pull>,
                         weft::rpc::Method<"push", &ParameterServer::push>,
                         weft::rpc::Method<"set_learning_rate", &ParameterServer::set_learning_rate>>;

 private:
  struct Model;
  std::unique_ptr<Model> model_;
  std::uint64_t version_ = 0;
  std::uint64_t staleness_;
};

weft::rpc::Task<void> run_pull_push(weft::rpc::Agent& agent, const Settings& settings, Batches& batches,
                                    const Dataset& test, Report& report);
