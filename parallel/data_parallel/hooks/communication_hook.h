// CommunicationHook: averages the gradients of a bucket over a process group.
//
// Without a hook, a DistributedDataParallel all-reduces each bucket with ReduceOp::avg. A hook replaces this
// all-reduce: it may compress the gradients, add noise, or delay them. All ranks use the same hook. One hook
// serves all iterations of a module, and may keep state between them. One thread at a time calls it.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

// A bucket of gradients that a hook reduces.
struct WEFT_EXPORT GradientBucket {
  std::size_t index = 0;  // in the order of reduction
  // The last bucket of the plan. A backward that reaches none of its parameters does not reduce it, and then
  // has no bucket with this mark: which buckets are left out is known only after the others have started.
  bool last = false;
  at::Tensor buffer;                   // all gradients, flat, with zeros between them; also the result
  std::vector<at::Tensor> gradients;   // views of the buffer with the parameters' shapes
  std::vector<at::Tensor> parameters;  // of these gradients
  // The indices of these parameters in the module's order. After the first backward and after set_group(),
  // the reducer assigns the parameters to other buckets. A hook must therefore keep its state by parameter.
  // Between the steps of one reduction it keeps memory by buffer (bucket_memory.h): if several passes are in
  // flight, several buckets have the same index and the same parameters.
  std::vector<std::size_t> indices;
  // The ranks whose contributions are zeros that do not count in the mean (JoinOptions::divide_by_active).
  std::vector<int> excluded;
  // The reducer multiplies the result by this factor. Before step 0, it is correct for a hook whose result is
  // the mean over all ranks of the group: their number divided by that of the ranks that count. A hook with
  // another result must set it.
  double factor = 1;

  // Views of `flat` at the positions and with the shapes of the gradients. flat: one dimension, with at least
  // as many elements as the buffer.
  std::vector<at::Tensor> views_of(const at::Tensor& flat) const;
  // The first element of a gradient in the buffer. A gradient's elements have no gaps.
  std::int64_t begin_of(std::size_t gradient) const;
};

// Starts an all-reduce with ReduceOp::avg. Complex numbers are sent as pairs of real numbers, so that
// GroupOptions::wire_dtype applies to them.
WEFT_EXPORT rpc::Future<void> all_reduce_average(const collectives::Group& group, const at::Tensor& tensor);

class WEFT_EXPORT CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  // Called on every rank in each backward that is reduced, before the first bucket. A hook that wraps another
  // hook must forward the call.
  virtual void begin_iteration() {}

  // Runs a step of the reduction of one bucket and returns the collective that it has started. Step 0 runs as
  // soon as the bucket is full, usually during backward, for the buckets in order. Each further step runs
  // after backward, once the collective of the step before is complete. nullopt: no collective was started,
  // and the buffer holds the average.
  virtual std::optional<rpc::Future<void>> run(const collectives::Group& group, GradientBucket& bucket,
                                               int step) = 0;

  // The name in IterationStats. Default: the name of the class.
  virtual std::string name() const;
};

}  // namespace weft::data_parallel
