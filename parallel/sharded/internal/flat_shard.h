// FlatShard: one rank's part of parameters of one type, and what gives them their whole values for a while.
//
// The part is in the type that the parameters had. Its slices are leaves for an optimizer, which share its
// memory. Between place() and displace() the parameters have whole values, in the type in which the module
// computes; otherwise a use of their elements is an error. Not thread-safe.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/gradient_buckets.h>
#include <weft/parallel/sharded/internal/shard_layout.h>
#include <weft/parallel/sharded/shard_options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

class FlatShard {
 public:
  // Of parameters of one type and device, which all require grad or all do not. Takes their values over;
  // group: whose memory the part is in. owner: for messages.
  FlatShard(std::vector<data_parallel::NamedParameter> parameters, const collectives::Group& group,
            const ShardOptions& options, const std::string& owner);

  // Splits the parameters anew over another group. The elements of the part are zero from then on.
  void set_group(const collectives::Group& group);

  bool trains() const { return part_gradients_.defined(); }
  // By the parameters as they are now.
  bool is_frozen_in_part() const;
  // failed_precondition: a parameter requires grad that did not, or has another type or device.
  void check_unchanged() const;
  const std::vector<data_parallel::NamedParameter>& parameters() const { return parameters_; }
  const ShardLayout& layout() const { return layout_; }
  const std::vector<ShardLayout::Slice>& own() const { return layout_.slices[rank_]; }
  // By own(): leaves, named as dist_optim::slice_of() does.
  const std::vector<dist_optim::Parameter>& slices() const { return slices_; }
  const at::Tensor& part() const { return part_; }

  // --- Whole values ---
  const at::TensorOptions& gathered() const { return gathered_; }  // of the buffer for place()
  bool is_sent_as_is() const {
    return part_.options().device() == gathered_.device() &&
           part_.scalar_type() == c10::typeMetaToScalarType(gathered_.dtype());
  }
  void place(const at::Tensor& buffer);
  // The part gets the elements that differ from it in the buffer's type.
  void keep_changes(const at::Tensor& buffer);
  void displace();

  // --- Gradients ---
  const at::TensorOptions& gradients() const { return gradients_of_buffer_; }  // of the buffer for them
  // A gradient that backward has computed goes to its place in the buffer: the first one of a backward
  // replaces the elements there, later ones are added.
  void add_gradient(std::size_t parameter, const at::Tensor& gradient, const at::Tensor& buffer);
  // Those that add_gradient() was not called for become zero.
  void complete(const at::Tensor& buffer);
  // Where the reduction of this rank's part can go directly; undefined: it has to go to another buffer first.
  at::Tensor direct_output() const;
  // Adds the reduced part to the gradients of the slices; those that have none yet get one by publish().
  void take_reduced(const at::Tensor& part);
  // has_gradient: by parameter, whether a rank has computed one.
  void publish(const std::vector<bool>& has_gradient);
  void forget_gradients() { received_.assign(parameters_.size(), false); }  // of a backward that has ended
  bool has_received(std::size_t parameter) const { return received_[parameter]; }

  std::size_t bytes() const;  // of the part and its gradients

 private:
  at::Tensor slice_in(const at::Tensor& part, const ShardLayout::Slice& slice) const {
    return part.narrow(0, slice.offset, slice.end - slice.begin);
  }
  std::string reason(std::size_t parameter) const;
  void make_part(const collectives::Group& group, const at::TensorOptions& options, bool trains);

  const std::string owner_;
  const std::vector<data_parallel::NamedParameter> parameters_;
  std::size_t rank_;
  ShardLayout layout_;
  at::TensorOptions gathered_, gradients_of_buffer_;
  at::Tensor part_;
  at::Tensor part_gradients_;  // undefined: the parameters do not require grad
  std::vector<dist_optim::Parameter> slices_;
  std::vector<bool> received_;  // by parameter
};

}  // namespace weft::sharded
