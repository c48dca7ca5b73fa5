#include <weft/parallel/sharded/internal/gather_state.h>

#include <weft/dist_optim/local/slices.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <utility>

namespace weft::sharded {

// The learning rates and the fields that a rank has, without the tensors.
struct StateIndex {
  std::map<std::string, double> learning_rates;
  std::map<std::string, std::int64_t> fields;  // by their names; a count, or -1: elements
};
WEFT_CODEC(StateIndex, learning_rates, fields)

namespace {

StateIndex index_of(const dist_optim::OptimizerState& state) {
  StateIndex index{state.learning_rates, {}};
  for (const auto& [key, tensor] : state.tensors)
    index.fields[key] =
        tensor.dim() == 0 && tensor.scalar_type() == at::kLong ? tensor.item<std::int64_t>() : -1;
  return index;
}

// The exchange of one gather_state().
class StateGather {
 public:
  StateGather(const collectives::Group& group, const dist_optim::OptimizerState& own, std::optional<int> root,
              std::uint64_t tag)
      : group_(group),
        own_(own),
        root_(root),
        tag_(tag),
        indices_(group.all_gather_object(index_of(own)).get()) {
    const auto text = [](const StateIndex& index) {
      std::string rates;
      for (const auto& [group, rate] : index.learning_rates)
        rates += (rates.empty() ? "" : ", ") + (group.empty() ? "" : group + " ") + c10::str(rate);
      return rates;
    };
    for (std::size_t rank = 1; rank < indices_.size(); ++rank)
      if (indices_[rank].learning_rates != indices_[0].learning_rates)
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         "whole_state: the learning rates of rank 0 are " + text(indices_[0]) +
                             ", those of rank " + std::to_string(rank) + " are " + text(indices_[rank]) +
                             ", expected equal ones: set them on all ranks");
  }

  bool wants(int rank) const { return !root_ || *root_ == rank; }

  // Sends this rank's part of a parameter to the ranks that want it. If this rank wants it, returns all
  // parts.
  dist_optim::OptimizerState exchange(const FlatParameters::Bucket& bucket, std::size_t place,
                                      const dist_optim::Parameter& parameter) const {
    dist_optim::OptimizerState parts{own_.optimizer, own_.learning_rates, {}};
    std::vector<rpc::Future<void>> in_flight;
    for (int rank = 0; rank < group_.size(); ++rank) {
      const auto& slices = bucket.layout.slices[static_cast<std::size_t>(rank)];
      const auto slice =
          std::find_if(slices.begin(), slices.end(), [&](const auto& one) { return one.parameter == place; });
      if (slice == slices.end()) continue;
      const std::string prefix =
          dist_optim::slice_of(parameter, slice->begin, slice->end).name + "/";  // of its fields
      const auto& fields = indices_[static_cast<std::size_t>(rank)].fields;
      for (auto field = fields.lower_bound(prefix); field != fields.end() && field->first.starts_with(prefix);
           ++field) {
        const auto& [key, count] = *field;
        if (rank == group_.rank()) {
          const at::Tensor& tensor = own_.tensors.at(key);
          if (wants(rank)) parts.tensors[key] = tensor;
          for (int to = 0; to < group_.size() && count < 0; ++to)
            if (to != rank && wants(to)) in_flight.push_back(group_.send(tensor, to, tag_));
        } else if (wants(group_.rank())) {
          at::Tensor& tensor = parts.tensors[key];
          tensor = count >= 0 ? at::scalar_tensor(count, at::kLong)
                              : at::empty({slice->end - slice->begin},
                                          parameter.tensor.options().requires_grad(false));
          if (count < 0) in_flight.push_back(group_.recv(tensor, rank, tag_));
        }
      }
    }
    rpc::when_all(std::move(in_flight)).get();
    return parts;
  }

 private:
  const collectives::Group& group_;
  const dist_optim::OptimizerState& own_;
  const std::optional<int> root_;
  const std::uint64_t tag_;
  const std::vector<StateIndex> indices_;  // by rank
};

}  // namespace

dist_optim::OptimizerState gather_state(const collectives::Group& group,
                                        const std::vector<dist_optim::Parameter>& parameters,
                                        const std::vector<FlatParameters::Bucket>& buckets,
                                        const dist_optim::OptimizerState& own, std::optional<int> root,
                                        std::uint64_t tag) {
  const StateGather gather(group, own, root, tag);
  dist_optim::OptimizerState whole{own.optimizer, own.learning_rates, {}};
  std::exception_ptr error;  // thrown at the end: until then the other ranks wait for this one's parts
  for (const auto& bucket : buckets)
    for (std::size_t place = 0; place < bucket.parameters.size(); ++place) {
      const auto& parameter = parameters[bucket.parameters[place]];
      const auto parts = gather.exchange(bucket, place, parameter);
      if (!gather.wants(group.rank())) continue;
      try {
        for (const auto& [key, tensor] : dist_optim::reslice({parts}, {parameter}).tensors)
          whole.tensors[key] = tensor.cpu();
      } catch (...) {
        if (error == nullptr) error = std::current_exception();
      }
    }
  if (error != nullptr) std::rethrow_exception(error);
  return whole;
}

}  // namespace weft::sharded
