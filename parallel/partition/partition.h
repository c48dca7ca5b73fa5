// Partition: a division of a profile's layers into pipeline stages, and the predicted time per micro-batch.
//
// pipedream() (pipedream.h) finds a partition. The functions of balance.h and of this file divide the
// topological order of the layers into consecutive stages. In every partition, data flows from a stage to
// later stages only. plan.h assigns stages to ranks. Errors: rpc::Error with the kind invalid_argument.
// Thread-safety: values.
#pragma once

#include <weft/parallel/partition/profile.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace weft::partition {

// One stage and its replicas.
struct Stage {
  std::vector<std::size_t> layers;  // indices into the profile, in topological order
  // The number of copies of the stage, which train on different micro-batches, at each level of the machine,
  // innermost first. {4, 2}: copies on the 4 workers of each of 2 hosts.
  std::vector<std::size_t> replicas{1};
  std::vector<int> ranks;  // the ranks of the replicas; workers of a host have consecutive ranks
  double forward_seconds = 0, backward_seconds = 0;  // of one micro-batch on one replica
  double activation_bytes = 0;                       // of all its layers, for one micro-batch
  double parameter_bytes = 0;                        // on each replica
  double sent_bytes = 0;  // outputs of its layers that later stages read, for one micro-batch

  // Of one micro-batch on one replica.
  double compute_seconds() const { return forward_seconds + backward_seconds; }
};

// The places at which a graph may be cut in two. For a chain, all three are the same.
enum class Cuts {
  all,             // wherever data crosses the cut in one direction: at each antichain
  whole_branches,  // not within a branch: its consecutive layers stay together
  in_order,        // between consecutive layers of the topological order
};

struct Partition {
  std::vector<Stage> stages;
  Cuts cuts = Cuts::in_order;        // the cuts that were allowed
  double bottleneck_seconds = 0;     // between two completed micro-batches, once the pipeline is full
  double total_seconds = 0;          // one micro-batch through all layers on one worker
  double data_parallel_seconds = 0;  // the bottleneck if all workers were replicas of one stage; 0: unknown

  WEFT_EXPORT std::size_t workers() const;  // of all stages
  WEFT_EXPORT double speed_up() const;      // over one worker; 1 if no layer takes time
};

// Cuts the layers into stages with these numbers of layers. invalid_argument: their sum differs from the
// number of layers, or one of them is 0.
WEFT_EXPORT Partition cut_by_count(const Profile& profile, std::span<const std::size_t> layers);

// Cuts the layers into `stages` stages whose numbers of layers differ by at most 1, larger stages first.
// invalid_argument: no stages, or more stages than layers.
WEFT_EXPORT Partition cut_evenly(const Profile& profile, std::size_t stages);

// A stage begins at the first layer and at each of the named layers. A name is a layer's name, or a
// description that only one layer has. invalid_argument: an unknown name, a repeated name, names that are not
// in topological order, or the name of the first layer.
WEFT_EXPORT Partition cut_by_name(const Profile& profile, std::span<const std::string> names);

// Returns the stage of these layers, which must be in topological order, with one replica and without ranks.
// If a layer outside of the stage reads an output of the stage, that layer counts as part of a later stage.
WEFT_EXPORT Stage stage_of(const Profile& profile, std::vector<std::size_t> layers);

// The profile with Layer::stage set, as PipeDream writes a partition.
WEFT_EXPORT Profile with_stages(Profile profile, const Partition& partition);

// A table with a line for each stage, then `bottleneck SECONDS s` and the expected speed-up. Control
// characters of names are not escaped.
WEFT_EXPORT std::string to_text(const Profile& profile, const Partition& partition);

}  // namespace weft::partition
