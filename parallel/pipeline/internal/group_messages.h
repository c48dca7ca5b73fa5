// GroupMessages: sends and receives the values of one step between the ranks of a process group.
//
// A rank receives the values of each edge, direction and sender in the order in which it uses them. It
// receives at most as many values in advance as the edge has credits (in_flight.h). Values without a device
// route are sent through host memory. An error fails the exchange. The executor creates a GroupMessages for
// each step; messages in flight may outlive it. Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/pipeline/internal/device_route.h>
#include <weft/parallel/pipeline/internal/in_flight.h>

#include <chrono>
#include <memory>

namespace weft::pipeline {

class GroupMessages {
 public:
  // graph, schedule, credits and devices must outlive this object.
  GroupMessages(collectives::Group group, const StageGraph& graph, const schedule::Schedule& schedule,
                const Credits& credits, const DeviceRoutes& devices, std::shared_ptr<ValueExchange> exchange,
                std::chrono::nanoseconds timeout);

  // Starts to receive the values that this rank uses in a step of `microbatches` micro-batches. The values
  // may be used on the streams that are current for the devices at this call.
  void receive(bool with_backward, std::size_t microbatches) const;
  // Sends the values to the rank of the stage that uses them. If the edge has no credit left, blocks until
  // the receiver has received a value, or until the timeout.
  void send(const ValueExchange::Key& key, Values values) const;

 private:
  class Receiver;

  const collectives::Group group_;
  const StageGraph& graph_;
  const schedule::Schedule& schedule_;
  const Credits& credits_;
  const DeviceRoutes& devices_;
  const std::shared_ptr<ValueExchange> exchange_;
  const std::shared_ptr<InFlight> in_flight_;
  const std::chrono::nanoseconds timeout_;
  const std::vector<ValueExchange::Key> ties_;
  std::vector<schedule::Edge> routes_;  // the edges that have messages; ascending
};

}  // namespace weft::pipeline
