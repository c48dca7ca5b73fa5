// The costs that plan() (planner.h) uses: links, collectives, and the layers of one rank.
//
// A message takes latency + bytes / bandwidth. An all-reduce over n ranks of a host is a ring: 2 (n - 1)
// messages of bytes / n. Over several hosts it has two levels: a ring over the ranks of each host, and one
// over the hosts. Ranks are numbered host by host. The ranks of a tensor group are consecutive; Order defines
// the order of the other two dimensions. All groups of a dimension communicate at the same time. Groups that
// communicate between hosts share the bandwidth of the host. Pure functions. Thread-safety: values.
#pragma once

#include <weft/parallel/partition/profile.h>
#include <weft/rpc/core/export.h>

#include <limits>
#include <vector>

namespace weft::planner {

// The model whose step is predicted.
struct Model {
  partition::Profile profile;  // of one micro-batch on one rank, as pipeline::profile() measures it
  int microbatch = 1;          // samples of that micro-batch
  // Of each layer of the profile: the bytes that its forward keeps for its backward. Empty: the bytes of its
  // output, which are fewer. pipeline::profile() measures them with ProfileOptions::activations = kept.
  std::vector<double> kept_bytes = {};
  // Of each layer of the profile: whether tensor parallel splits it. Empty: no layer.
  std::vector<bool> split = {};
  int split_units = 0;  // such as attention heads; a multiple of the number of tensor ranks; 0: no condition
  int reductions = 2;   // all-reduces of a split layer's output in forward, and as many in backward
};

// The hosts, and the links within and between them.
struct Machine {
  int hosts = 1, ranks_per_host = 1;
  int cores_per_host = 0;  // shared by the ranks of the host; 0: one for each rank
  double memory_bytes = std::numeric_limits<double>::infinity();  // of a rank
  double bytes_per_second = 1e10;                                 // between two ranks of a host
  double host_bytes_per_second = 1e9;                             // of a host, to and from all others
  double latency = 10e-6, host_latency = 50e-6;                   // seconds, within a host and between hosts

  // Of all hosts.
  int ranks() const { return hosts * ranks_per_host; }
};

enum class Order {
  pipeline_inside,  // a mesh of {data, pipeline, tensor}: the stages of a pipeline are close to each other
  data_inside,      // {pipeline, data, tensor}: the replicas of a stage are close to each other
};

// The number of ranks in each dimension, and the order of the dimensions.
struct Grid {
  int data = 1, pipeline = 1, tensor = 1;
  Order order = Order::pipeline_inside;

  // All ranks.
  int ranks() const { return data * pipeline * tensor; }
  // The difference of the numbers of two consecutive ranks of a dimension.
  int data_stride() const { return order == Order::data_inside ? tensor : tensor * pipeline; }
  int pipeline_stride() const { return order == Order::data_inside ? tensor * data : tensor; }

  bool operator==(const Grid&) const = default;
};

// The latency, in seconds, and the bandwidth of a link.
struct Link {
  double latency = 0, bytes_per_second = std::numeric_limits<double>::infinity();
};

// Ranks that each send to the next one over this link.
struct Ring {
  Link link = {};
  int ranks = 1;
};

// The rings of a group's all-reduce.
struct Levels {
  Ring local = {}, across = {};  // within a host, and over the hosts
};

// Returns 0 if there are no bytes.
WEFT_EXPORT double message_seconds(const Link& link, double bytes);
// Returns 0 for one rank, or if there are no bytes.
WEFT_EXPORT double all_reduce_seconds(const Levels& levels, double bytes);

// The rings of groups of `size` ranks whose numbers differ by `stride`: `local` for the group with the most
// ranks on a host, `across` for the group on the most hosts.
WEFT_EXPORT Levels levels_of(const Machine& machine, int size, int stride);
// The link from pipeline rank `from` to another pipeline rank `to` of the grid.
WEFT_EXPORT Link pipeline_link(const Machine& machine, const Grid& grid, int from, int to);

// The layers as one rank of a tensor group computes them. Inputs of the model are left out.
struct RankModel {
  partition::Profile profile;          // of one micro-batch; times include the all-reduces
  std::vector<double> kept_bytes;      // by layer
  std::vector<double> tensor_seconds;  // by layer: of its all-reduces in one direction
};

// Times and activations are proportional to `microbatch`, the number of samples. A split layer has 1 / tensor
// of its compute times and of its parameters. For backward, it keeps its whole output, and 1 / tensor of its
// other kept bytes. Other layers are computed on each rank of the tensor group.
WEFT_EXPORT RankModel rank_model(const Model& model, int microbatch, int tensor, const Levels& tensor_levels);

}  // namespace weft::planner
