// FlatShard: one rank's part of parameters of one type, and the functions that temporarily give the
// parameters their whole values.
//
// The part is in the type that the parameters had. Its slices are leaves for an optimizer, which share its
// memory. Between place() and displace() the parameters have whole values, in the type in which the module
// computes; otherwise a use of their elements is an error. Not thread-safe.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/internal/gradient_buckets.h>
#include <weft/parallel/sharded/internal/shard_layout.h>
#include <weft/parallel/sharded/shard_options.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::sharded {

class FlatShard {
 public:
  // parameters: of one type and device; all require grad or none does. Takes the values of those that have
  // memory; the others are zero. The part is in the
  // memory of the group, or in host memory (ShardOptions::in_host_memory). owner: a name for error messages.
  FlatShard(std::vector<data_parallel::NamedParameter> parameters, const collectives::Group& group,
            const ShardOptions& options, const std::string& owner);

  // Splits the parameters over another group. The elements of the new part are zero. trains: whether the part
  // has gradients.
  void set_group(const collectives::Group& group, bool trains);

  // Copies this rank's elements of a parameter.
  void take_values(std::size_t parameter, const at::Tensor& values);
  // Whether the part has gradients: a parameter required grad at construction or at a call of train(), or
  // set_group() was told so.
  bool trains() const { return part_gradients_.defined(); }
  // Whether some of the parameters do not require grad now.
  bool is_frozen_in_part() const;
  // Whether the parameters can have gradients.
  bool is_differentiable() const { return part_.is_floating_point() || part_.is_complex(); }
  // The parameters that require grad now although the part has no gradients.
  std::vector<std::string> thawed() const;
  // Makes gradients for the part. The slices stay the same tensors, which require grad afterwards.
  void train();
  // The program may have given the parameters other memory (torch::load does). Copies its values into the
  // part and removes it. failed_precondition: the memory is of another type or device, or has other sizes.
  // buffer: that of place(), if the parameters have whole values: they get the values, too.
  void take_replaced(const at::Tensor& buffer = {});
  const std::vector<data_parallel::NamedParameter>& parameters() const { return parameters_; }
  const ShardLayout& layout() const { return layout_; }
  const std::vector<ShardLayout::Slice>& own() const { return layout_.slices[rank_]; }
  // The slices, in the order of own(): leaves, named as dist_optim::slice_of() names them.
  const std::vector<dist_optim::Parameter>& slices() const { return slices_; }
  const at::Tensor& part() const { return part_; }

  // --- Whole values ---
  const at::TensorOptions& gathered() const { return gathered_; }  // of the buffer for place()
  bool is_sent_as_is() const {
    return part_.options().device() == gathered_.device() &&
           part_.scalar_type() == c10::typeMetaToScalarType(gathered_.dtype());
  }
  void place(const at::Tensor& buffer);
  // This rank's elements of the buffer.
  at::Tensor own_in(const at::Tensor& buffer) const {
    return buffer.narrow(0, static_cast<std::int64_t>(rank_) * layout_.part, layout_.part);
  }
  // Copies into the part the values of replaced memory, and the elements of the buffer that differ from
  // `before`, an earlier copy of own_in(). Other elements keep their values in the part, also if an optimizer
  // has changed them meanwhile.
  void keep_changes(const at::Tensor& buffer, const at::Tensor& before);
  void displace();
  // Removes the memory that the program has given to the parameters.
  void drop_replaced();

  // --- Gradients ---
  const at::TensorOptions& gradients() const { return gradients_of_buffer_; }  // of the buffer for them
  // Adds a gradient to the buffer: the first gradient of a parameter in a backward replaces the elements,
  // later ones are added.
  void add_gradient(std::size_t parameter, const at::Tensor& gradient, const at::Tensor& buffer);
  // Sets the gradients for which add_gradient() was not called to zero.
  void complete(const at::Tensor& buffer);
  // Prepares the memory of the gradients for a reduction: gradients of an earlier backward that the program
  // holds keep their memory. Returns the tensor into which the reduction can write this rank's part directly;
  // undefined: it needs another buffer.
  at::Tensor direct_output();
  // Adds the reduced part to the gradients of the slices. Slices without a gradient get one in publish().
  void take_reduced(const at::Tensor& part);
  // has_gradient: by parameter, whether any rank has computed its gradient.
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
  void make_gradients();
  bool is_replaced(std::size_t parameter) const;
  at::Tensor replaced_values(const at::Tensor& parameter) const;
  void detach(std::size_t parameter);

  const std::string owner_;
  const std::vector<data_parallel::NamedParameter> parameters_;
  const std::vector<std::vector<std::int64_t>> sizes_;  // by parameter
  std::size_t rank_;
  ShardLayout layout_;
  at::TensorOptions gathered_, gradients_of_buffer_;
  at::Tensor part_;
  at::Tensor part_gradients_;  // undefined: the parameters do not require grad
  std::vector<dist_optim::Parameter> slices_;
  std::vector<c10::Storage> storages_;  // by parameter: the storage that place() fills
  std::vector<bool> received_;          // by parameter
};

}  // namespace weft::sharded
