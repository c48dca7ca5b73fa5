#include <weft/dist_autograd/internal/pass_graph.h>

#include <weft/dist_autograd/internal/nodes.h>

#include <unordered_map>

namespace weft::dist_autograd {
namespace {

using torch::autograd::Node;

class Describer {
 public:
  // The index of a node in the list, to which it is added when it is first seen.
  std::uint64_t place_of(Node* node) {
    const auto [found, is_new] = places_.try_emplace(node, places_.size());
    if (is_new) {
      order_.push_back(node);
      GraphNode entry;
      entry.name = node->name();
      if (const auto* received = dynamic_cast<const RecvBackward*>(node))
        entry.received = received->message();
      nodes_.push_back(std::move(entry));
    }
    return found->second;
  }

  void add_send(const MessageId& message, Node* node) { nodes_[place_of(node)].sent = message; }

  std::vector<GraphNode> finish() {
    for (std::size_t i = 0; i < order_.size(); ++i) {  // the list grows meanwhile
      std::vector<std::uint64_t> next;
      for (const auto& edge : order_[i]->next_edges())
        if (edge.is_valid()) next.push_back(place_of(edge.function.get()));
      nodes_[i].next = std::move(next);
    }
    return std::move(nodes_);
  }

 private:
  std::unordered_map<Node*, std::uint64_t> places_;
  std::vector<Node*> order_;
  std::vector<GraphNode> nodes_;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace

std::vector<GraphNode> describe_graph(const std::map<MessageId, NodePtr>& sends,
                                      const std::vector<NodePtr>& roots) {
  Describer describer;
  for (const NodePtr& root : roots) describer.place_of(root.get());
  for (const auto& [message, node] : sends) describer.add_send(message, node.get());
  return describer.finish();
}

std::string to_dot(const PassId& pass, const std::vector<WorkerGraph>& workers) {
  const auto name = [](std::size_t worker, std::size_t node) {
    return "n" + std::to_string(worker) + "_" + std::to_string(node);
  };
  std::map<MessageId, std::string> sent;
  for (std::size_t w = 0; w < workers.size(); ++w)
    for (std::size_t i = 0; i < workers[w].nodes.size(); ++i)
      if (workers[w].nodes[i].sent != MessageId{}) sent[workers[w].nodes[i].sent] = name(w, i);

  std::string within, between;
  for (std::size_t w = 0; w < workers.size(); ++w) {
    within +=
        "  subgraph cluster_" + std::to_string(w) + " {\n    label=" + quoted(workers[w].worker.name) + ";\n";
    for (std::size_t i = 0; i < workers[w].nodes.size(); ++i) {
      const GraphNode& node = workers[w].nodes[i];
      within += "    " + name(w, i) + " [label=" + quoted(node.name) + "];\n";
      for (const std::uint64_t next : node.next)
        within += "    " + name(w, i) + " -> " + name(w, next) + ";\n";
      if (node.received == MessageId{}) continue;
      if (const auto to = sent.find(node.received); to != sent.end())
        between += "  " + name(w, i) + " -> " + to->second + " [style=dashed];\n";
    }
    within += "  }\n";
  }
  return "digraph " + quoted(to_string(pass)) + " {\n  node [shape=box];\n" + within + between + "}\n";
}

}  // namespace weft::dist_autograd
