#include <weft/parallel/data_parallel/internal/gradient_buckets.h>

#include <weft/rpc/core/fixed_string.h>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <sstream>
#include <unordered_map>
#include <utility>

namespace weft::data_parallel {
namespace {

constexpr std::size_t alignment = 64;  // bytes of a gradient's place in a bucket

std::size_t padded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

// Returns the part with the strides that LibTorch gives a gradient: those of the parameter, if it has no
// gaps. For autograd the result is not a view, because Optimizer::zero_grad(false) detaches gradients in
// place.
at::Tensor view_for(const at::Tensor& parameter, const at::Tensor& part) {
  const at::AutoDispatchBelowADInplaceOrView no_view;
  return parameter.is_non_overlapping_and_dense()
             ? part.as_strided(parameter.sizes(), parameter.strides(), part.storage_offset())
             : part.view(parameter.sizes());
}

}  // namespace

bool is_alias(const at::Tensor& gradient, const at::Tensor& view) {
  return gradient.defined() && view.defined() && !gradient.is_sparse() &&
         gradient.const_data_ptr() == view.const_data_ptr() && gradient.strides() == view.strides();
}

std::vector<std::string> names_of(const std::vector<NamedParameter>& parameters) {
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters) names.push_back(parameter.name);
  return names;
}

GradientBuckets::GradientBuckets(const collectives::Group& group,
                                 const std::vector<NamedParameter>& parameters, BucketPlan plan)
    : plan_(std::move(plan)),
      parameters_(parameters),
      bucket_of_(parameters.size(), none),
      views_(parameters.size()),
      before_(parameters.size()),
      buckets_(plan_.size()),
      gathers_(plan_.size()),
      ranks_(group.size()) {
  const at::NoGradGuard no_grad;
  for (const NamedParameter& parameter : parameters_)
    options_.push_back(parameter.tensor.options().requires_grad(false));
  std::unordered_map<c10::Device, std::shared_ptr<training::CommunicationStream>> streams;
  std::ostringstream description;
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    GradientBucket& bucket = buckets_[index];
    bucket.index = index;
    bucket.last = index + 1 == plan_.size();
    std::size_t bytes = 0;
    for (const std::size_t parameter : plan_[index]) {
      bucket_of_[parameter] = index;
      const at::Tensor& tensor = parameters_[parameter].tensor;
      bytes += padded(tensor.nbytes());
      description << parameter << ' ' << tensor.scalar_type() << ' ' << tensor.device().type()
                  << tensor.sizes();
    }
    description << '\n';
    const auto& [name, first, sparse] = parameters_[plan_[index].front()];
    auto& stream = streams[first.device()];
    if (stream == nullptr) stream = std::make_shared<training::CommunicationStream>(first.device());
    streams_.push_back(stream);
    if (sparse) continue;
    const auto item = first.element_size();
    bucket.buffer = group.empty({static_cast<std::int64_t>(bytes / item)},
                                at::TensorOptions(first.device()).dtype(first.dtype()));
    bucket.buffer.zero_();
    std::size_t begin = 0;
    for (const std::size_t parameter : plan_[index]) {
      const at::Tensor& tensor = parameters_[parameter].tensor;
      views_[parameter] =
          view_for(tensor, bucket.buffer.narrow(0, static_cast<std::int64_t>(begin / item), tensor.numel()));
      description << views_[parameter].strides();
      bucket.gradients.push_back(views_[parameter]);
      bucket.parameters.push_back(tensor);
      bucket.indices.push_back(parameter);
      begin += padded(tensor.nbytes());
    }
  }
  digest_ = rpc::name_hash(description.str());
  synchronize();  // the first writers may be other streams
}

bool GradientBuckets::has_type(std::size_t parameter) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  return tensor.scalar_type() == options_[parameter].dtype().toScalarType() &&
         tensor.device() == options_[parameter].device();
}

bool GradientBuckets::has_layout(std::size_t parameter) const {
  const auto& [name, tensor, sparse] = parameters_[parameter];
  if (sparse) return true;
  const at::Tensor& view = views_[parameter];
  return view.sizes() == tensor.sizes() &&
         (tensor.is_non_overlapping_and_dense() ? view.strides() == tensor.strides() : view.is_contiguous());
}

rpc::Error GradientBuckets::difference(const collectives::Group& group) const {
  const auto planned =
      std::count_if(bucket_of_.begin(), bucket_of_.end(), [](std::size_t bucket) { return bucket != none; });
  return {
      rpc::ErrorKind::failed_precondition,
      "DistributedDataParallel: the ranks reduce different parameters, or parameters of different layouts "
      "(rank " +
          std::to_string(group.rank()) + ": " + std::to_string(planned) + " of " +
          std::to_string(bucket_of_.size()) +
          "): freeze, unfreeze and convert the same parameters on all ranks, before the same forward"};
}

void GradientBuckets::begin(const std::vector<int>& excluded) {
  for (GradientBucket& bucket : buckets_) bucket.excluded = excluded;
}

std::exception_ptr GradientBuckets::failure(std::size_t bucket, const std::exception_ptr& error) const {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::Error& known) {
    std::string names;
    for (const std::size_t index : plan_[bucket])
      names += (names.empty() ? "" : ", ") + parameters_[index].name;
    return std::make_exception_ptr(rpc::Error(known.kind(), "DistributedDataParallel: bucket " +
                                                                std::to_string(bucket) + " (" + names +
                                                                ") was not reduced: " + known.what()));
  } catch (...) {
    return error;
  }
}

std::size_t GradientBuckets::bytes(std::size_t bucket) const {
  return buckets_[bucket].buffer.defined() ? buckets_[bucket].buffer.nbytes() : 0;
}

void GradientBuckets::move_in(std::size_t parameter, at::Tensor& gradient) const {
  const at::Tensor& view = views_[parameter];
  const auto refuse = [&](const char* what) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "DistributedDataParallel: the gradient of " + parameters_[parameter].name + what);
  };
  if (!gradient.defined()) {
    gradient = view.zero_();
  } else if (gradient.is_sparse()) {
    refuse(" is sparse, expected a dense one: name the parameter in Options::sparse");
  } else if (gradient.requires_grad()) {
    refuse(" was recorded by autograd, expected one without a graph: create_graph is not supported");
  } else if (!is_alias(gradient, view)) {
    gradient = view.copy_(gradient);
  }
  streams_[bucket_of_[parameter]]->note_writer();
}

void GradientBuckets::contribute(std::size_t parameter, const at::Tensor& present) {
  const at::Tensor& view = views_[parameter];
  const bool shares_memory =
      present.defined() && !present.is_sparse() && present.data_ptr() == view.data_ptr();
  before_[parameter] = shares_memory ? present.clone() : present;
  if (!present.defined()) {
    view.zero_();
  } else if (!is_alias(present, view)) {
    view.copy_(present);
  }
}

void GradientBuckets::leave_kept() {
  const at::NoGradGuard no_grad;
  for (GradientBucket& bucket : buckets_)
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      at::Tensor& view = views_[bucket.indices[i]];
      if (view.use_count() <= 2 || bucket.parameters[i].grad().is_same(view))
        continue;  // 2: `views_` and `bucket`
      const at::Tensor kept = view;
      view = bucket.gradients[i] = kept.detach();
      kept.set_data(kept.clone());
    }
}

void GradientBuckets::end_writes(std::size_t bucket) const {
  streams_[bucket]->note_writer();
  streams_[bucket]->follow_writers();
}

void GradientBuckets::synchronize() const {
  for (const auto& stream : streams_) stream->synchronize_current();
}

std::optional<rpc::Future<void>> GradientBuckets::run(const collectives::Group& group,
                                                      CommunicationHook* hook, std::size_t bucket, int step,
                                                      const at::Tensor& sparse) {
  return streams_[bucket]->run([&] { return run_on_stream(group, hook, bucket, step, sparse); });
}

std::optional<rpc::Future<void>> GradientBuckets::run_on_stream(const collectives::Group& group,
                                                                CommunicationHook* hook, std::size_t bucket,
                                                                int step, const at::Tensor& sparse) {
  const at::NoGradGuard no_grad;
  GradientBucket& content = buckets_[bucket];
  if (!content.buffer.defined()) {
    const std::size_t index = plan_[bucket].front();
    const NamedParameter& parameter = parameters_[index];
    if (step > 0) return gathers_[bucket]->run(step);
    if (sparse.defined() && !sparse.is_sparse())
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "DistributedDataParallel: the gradient of " + parameter.name +
                           " is dense, expected a sparse one: use an Embedding without the option `sparse`");
    return gathers_[bucket].emplace(group, parameter.tensor.sizes(), options_[index], sparse).run(0);
  }
  if (step == 0)
    content.factor = static_cast<double>(group.size()) /
                     static_cast<double>(group.size() - static_cast<int>(content.excluded.size()));
  if (hook != nullptr) return hook->run(group, content, step);
  if (step > 0) return std::nullopt;
  return all_reduce_average(group, content.buffer);
}

void GradientBuckets::publish(std::size_t bucket, const ReachedParameters& reached, const Use& use) {
  const at::NoGradGuard no_grad;
  begin_reads(bucket);
  const GradientBucket& content = buckets_[bucket];
  at::Tensor sparse_mean;
  if (!content.buffer.defined()) {
    // The gathered parts are kept until the next reduction, whose stream first waits for the work that reads
    // them here.
    sparse_mean = gathers_[bucket]->sum().div_(ranks_ - static_cast<std::int64_t>(content.excluded.size()));
  } else if (content.factor != 1) {
    content.buffer.mul_(content.factor);
  }
  for (const std::size_t parameter : plan_[bucket]) {
    const at::Tensor before = std::exchange(before_[parameter], {});
    if (reached.anywhere(parameter)) {
      use(parameter, sparse_mean.defined() ? sparse_mean : views_[parameter], before.defined());
    } else if (before.defined()) {
      views_[parameter].copy_(before);
    }
  }
}

}  // namespace weft::data_parallel
