// GroupMessages: the values of one step on their way between the ranks of a process group.
//
// Receives those of each edge, direction and sender in the order in which this rank uses them, as many ahead
// of their use as there are credits. Values without a device route go through the host's memory. Errors go to
// the exchange. The executor keeps one for each step; the messages in flight keep what they need.
// Thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/pipeline/internal/device_route.h>
#include <weft/parallel/pipeline/internal/in_flight.h>

#include <chrono>
#include <memory>

namespace weft::pipeline {

class GroupMessages {
 public:
  // graph, schedule, credits and devices outlive this object.
  GroupMessages(collectives::Group group, const StageGraph& graph, const schedule::Schedule& schedule,
                const Credits& credits, const DeviceRoutes& devices, std::shared_ptr<ValueExchange> exchange,
                std::chrono::nanoseconds timeout);

  // Begins to receive the values that this rank uses in a step of `microbatches` micro-batches, on the
  // current streams of its devices.
  void receive(bool with_backward, std::size_t microbatches) const;
  // To the rank of the stage that uses the values. Waits for credits.
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
  std::vector<schedule::Edge> routes_;  // along which messages may go; ascending
};

}  // namespace weft::pipeline
