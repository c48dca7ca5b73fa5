// DeviceRoute: sends the values of one edge and direction from one rank to another, between their devices, by
// NCCL.
//
// The sender first sends a header as a message of the group. The header describes the tensors that follow by
// NCCL, and contains the tensors that are not on the device. A communicator runs its operations in order.
// Therefore each route has a separate stream and a separate group of two ranks, which has its own
// communicator: the values of a route do not wait for those of other routes, nor for the computations of the
// stage. Thread-safety: one send() or receive() at a time.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/pipeline/internal/sent_values.h>
#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/parallel/training/communication_stream.h>

#include <compare>
#include <map>
#include <memory>
#include <string>

namespace weft::pipeline {

// For calls that need no timeout: these calls fail when the group is aborted, and the stages have a timeout
// for values.
constexpr collectives::Timeout no_timeout = std::chrono::nanoseconds::max();

class DeviceRoute : public std::enable_shared_from_this<DeviceRoute> {
 public:
  // pair: a group in which rank 0 sends to rank 1. prepare() must have completed for the device.
  DeviceRoute(collectives::Group pair, c10::Device device);

  // values: computed on the current stream. The future completes when the receiver has the values.
  rpc::Future<void> send(int microbatch, const Values& values);

  struct Arrival {
    int microbatch = -1;
    SentValues values;
  };
  using Arrived = rpc::UniqueFunction<void(rpc::Result<Arrival>&&)>;
  // Receives the next values, in the order in which they were sent. Call it after the previous values have
  // arrived. reader: the stream that will use the values.
  void receive(c10::Stream reader, Arrived arrived);

  void abort(const std::string& reason) const { pair_.abort(reason); }
  c10::Device device() const { return device_; }

 private:
  const collectives::Group pair_;
  const c10::Device device_;
  const training::CommunicationStream communication_;
};

struct RouteKey {
  schedule::Edge edge;
  bool gradient = false;
  int from = 0, to = 0;  // ranks of the pipeline's group
  auto operator<=>(const RouteKey&) const = default;
};
using DeviceRoutes = std::map<RouteKey, std::shared_ptr<DeviceRoute>>;

// Creates the routes that begin or end at this rank, and whose ranks both have a device of the same type. All
// ranks must call it. device: this rank's device; the CPU: the rank has no routes. If NCCL cannot connect two
// of the ranks, all ranks throw unsupported.
DeviceRoutes device_routes(const collectives::Group& group, const StageGraph& graph,
                           const schedule::Schedule& schedule, c10::Device device,
                           std::chrono::nanoseconds timeout);

}  // namespace weft::pipeline
