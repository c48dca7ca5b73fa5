// The graph of a pass: each worker's nodes, and the messages that connect them. For drawing, not for running.
//
// A worker's part is the graph behind the messages that it sent and behind the given roots. Nodes that a
// backward without retain_graph has run are missing. Thread-safety: functions over values.
#pragma once

#include <weft/dist_autograd/engine/node_ptr.h>
#include <weft/dist_autograd/ids.h>

#include <map>
#include <string>
#include <vector>

namespace weft::dist_autograd {

// A node. Other nodes refer to it by its index in WorkerGraph::nodes.
struct GraphNode {
  std::string name;  // as LibTorch names it: "MmBackward0"
  std::vector<std::uint64_t> next;
  MessageId sent;      // for a SendBackward
  MessageId received;  // for a RecvBackward
};
WEFT_CODEC(GraphNode, name, next, sent, received)

// The part of one worker.
struct WorkerGraph {
  rpc::AgentId worker;
  std::vector<rpc::AgentId> met;  // the workers with which it exchanged calls of the pass
  std::vector<GraphNode> nodes;
};
WEFT_CODEC(WorkerGraph, worker, met, nodes)

// The nodes that can be reached from these messages and roots.
WEFT_EXPORT std::vector<GraphNode> describe_graph(const std::map<MessageId, NodePtr>& sends,
                                                  const std::vector<NodePtr>& roots);

// Draws the graph in Graphviz' language: a box for each worker, and arrows in the direction of the gradients,
// dashed between workers.
WEFT_EXPORT std::string to_dot(const PassId& pass, const std::vector<WorkerGraph>& workers);

}  // namespace weft::dist_autograd
