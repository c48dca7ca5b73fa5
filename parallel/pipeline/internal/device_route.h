// DeviceRoute: carries the values of one edge and direction from a rank to another one, between their
// devices and by NCCL.
//
// A header goes ahead as a message: it says which tensors follow, and contains those that are not on a
// device. NCCL runs what a communicator is given in order; so each route has a communicator, of a group of
// two ranks, and a stream: values of other routes do not wait, and the stage computes in the meantime.
// One thread at a time sends, or receives.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/communication_stream.h>
#include <weft/parallel/pipeline/internal/sent_values.h>
#include <weft/parallel/pipeline/stage_graph.h>

#include <compare>
#include <map>
#include <memory>
#include <string>

namespace weft::pipeline {

// Of calls that end with the group, or that the waits of stages limit.
constexpr collectives::Timeout no_timeout = std::chrono::nanoseconds::max();

class DeviceRoute : public std::enable_shared_from_this<DeviceRoute> {
 public:
  // Sends the values of its rank 0 to its rank 1. Prepared for the device.
  DeviceRoute(collectives::Group pair, c10::Device device);

  // The current stream computes them. Completes when the receiver has them.
  rpc::Future<void> send(int microbatch, const Values& values);

  struct Arrival {
    int microbatch = -1;
    SentValues values;
  };
  // The values that the sender sent next. Called when the previous ones have arrived. reader: uses them
  // later.
  using Arrived = rpc::UniqueFunction<void(rpc::Result<Arrival>&&)>;
  void receive(c10::Stream reader, Arrived arrived);

  void abort(const std::string& reason) const { pair_.abort(reason); }
  c10::Device device() const { return device_; }

 private:
  const collectives::Group pair_;
  const c10::Device device_;
  const data_parallel::CommunicationStream communication_;
};

struct RouteKey {
  schedule::Edge edge;
  bool gradient = false;
  int from = 0, to = 0;  // ranks
  auto operator<=>(const RouteKey&) const = default;
};
using DeviceRoutes = std::map<RouteKey, std::shared_ptr<DeviceRoute>>;

// This rank's, in which both ends are on devices of one type. Called by all ranks; device: of this rank, or
// the CPU. unsupported, on all ranks: NCCL does not connect two of them.
DeviceRoutes device_routes(const collectives::Group& group, const StageGraph& graph,
                           const schedule::Schedule& schedule, c10::Device device,
                           std::chrono::nanoseconds timeout);

}  // namespace weft::pipeline
