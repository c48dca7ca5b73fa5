#include <weft/parallel/data_parallel/internal/pass_reduction.h>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace weft::data_parallel {
namespace {

rpc::Future<void> complete() { return rpc::Future<void>::made(rpc::Result<void>{}); }

}  // namespace

PassReduction::PassReduction(Setup setup)
    : setup_(std::move(setup)),
      buckets_(setup_.group, setup_.parameters, setup_.plan),
      parameters_(setup_.parameters.size()),
      reached_(setup_.parameters.size(), buckets_.digest()) {
  buckets_.begin(setup_.excluded);
}

void PassReduction::attach(const std::shared_ptr<dist_autograd::PassState>& pass) {
  pass_ = pass;
  const auto self = shared_from_this();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!buckets_.has(i) || !setup_.parameters[i].tensor.requires_grad()) continue;
    parameters_[i].awaited = true;
    pass->hooks().on_gradient(setup_.parameters[i].tensor,
                              [self, i](at::Tensor& gradient) { self->on_gradient(i, gradient); });
  }
  pass->hooks().on_finalize([self](const std::vector<at::Tensor>&) {
    if (const auto pass = self->pass_.lock()) pass->complete_after(self->finalize());
  });
  pass->on_end([self] { self->pass_ended(); });
}

const std::string* PassReduction::unfrozen() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (const auto& [name, tensor, sparse] = setup_.parameters[i];
        tensor.requires_grad() && !parameters_[i].awaited)
      return &name;
  return nullptr;
}

rpc::Future<void> PassReduction::shadow() { return finalize(); }

std::string PassReduction::launch_name(const std::string& part) {
  rpc::MutexLock lock(mutex_);
  return "pass " + setup_.name + ", backward " + std::to_string(backward_) + ", " + part;
}

// --- Gradients ---

void PassReduction::begin() {
  if (std::exchange(running_, true)) return;
  ++backward_;
  hook_began_ = false;
  error_ = nullptr;
  states_ = std::vector<Bucket>(buckets_.size());
  for (std::size_t i = 0; i < states_.size(); ++i)
    for (const std::size_t index : buckets_.parameters(i)) states_[i].missing += parameters_[index].awaited;
  for (Parameter& parameter : parameters_) parameter.reached = false;
}

void PassReduction::on_gradient(std::size_t index, at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  const auto& [name, tensor, sparse] = setup_.parameters[index];
  rpc::MutexLock lock(mutex_);
  const at::Tensor& view = buckets_.view(index);
  if (publishing_) {
    if (!sparse) gradient = view;
    return;
  }
  begin();
  Parameter& parameter = parameters_[index];
  if (!sparse) {
    buckets_.move_in(index, gradient);
  } else {
    if (!gradient.is_sparse() || gradient.requires_grad())
      throw rpc::Error(
          rpc::ErrorKind::failed_precondition,
          "DistributedDataParallel: the gradient of " + name +
              (gradient.is_sparse() ? " was recorded by autograd, expected one without a graph: "
                                      "create_graph is not supported"
                                    : " is dense, expected a sparse one: use an Embedding without the "
                                      "option `sparse`"));
    parameter.sparse = gradient = gradient.coalesce().clone();  // it is written in place later
  }
  parameter.reached = true;
  const std::size_t bucket = buckets_.bucket_of(index);
  if (--states_[bucket].missing != 0) return;
  prepare(bucket);
  lock.unlock();
  run(bucket, 0);
}

// Prepares this rank's contribution for parameters that it has not reached.
void PassReduction::prepare(std::size_t bucket) {
  ++open_;
  states_[bucket].launched = true;
  const auto pass = pass_.lock();
  for (const std::size_t index : buckets_.parameters(bucket)) {
    Parameter& parameter = parameters_[index];
    if (parameter.reached) continue;
    const at::Tensor present =
        pass != nullptr ? pass->gradient(setup_.parameters[index].tensor) : at::Tensor();
    if (setup_.parameters[index].sparse) {
      parameter.sparse = present;
    } else {
      buckets_.contribute(index, present);
    }
  }
  buckets_.end_writes(bucket);
}

// --- Collectives ---

void PassReduction::run(std::size_t bucket, int step) {
  const auto is_last = std::make_shared<bool>(false);
  const std::size_t first = buckets_.parameters(bucket).front();
  const bool has_one_step = setup_.hook == nullptr && !setup_.parameters[first].sparse;
  setup_.group
      .launch(launch_name("bucket " + std::to_string(bucket) + ", step " + std::to_string(step)),
              [self = shared_from_this(), bucket, step, first, is_last, has_one_step] {
                if (self->setup_.hook != nullptr && !std::exchange(self->hook_began_, true))
                  self->setup_.hook->begin_iteration();
                auto started = self->buckets_.run(self->setup_.group, self->setup_.hook.get(), bucket, step,
                                                  self->parameters_[first].sparse);
                *is_last = has_one_step || !started;
                return started ? std::move(*started) : complete();
              })
      .then([self = shared_from_this(), bucket, step, is_last](rpc::Result<void>&& result) {
        if (result.ok() && !*is_last) return self->run(bucket, step + 1);
        if (!result.ok()) result = self->buckets_.failure(bucket, result.error());
        self->ended(std::move(result));
      });
}

rpc::Future<void> PassReduction::finalize() {
  rpc::Promise<void> done;
  auto future = done.future();
  {
    rpc::MutexLock lock(mutex_);
    begin();
    done_ = std::move(done);
    ++open_;
    reached_ = ReachedParameters(parameters_.size(), buckets_.digest());
    for (std::size_t i = 0; i < parameters_.size(); ++i) reached_.set(i, parameters_[i].reached);
  }
  setup_.group
      .launch(launch_name("reached parameters"),
              [self = shared_from_this()] { return self->reached_.exchange(self->setup_.group); })
      .then([self = shared_from_this()](rpc::Result<void>&& result) {
        self->reached_is_known(std::move(result));
      });
  return future;
}

void PassReduction::reached_is_known(rpc::Result<void> result) {
  const at::NoGradGuard no_grad;
  std::vector<std::size_t> rest;
  if (result.ok() && !reached_.agreed()) {
    const rpc::Error error = buckets_.difference(setup_.group);
    result = std::make_exception_ptr(error);
    {
      rpc::MutexLock lock(mutex_);
      error_ = result.error();  // tells more than the error of a bucket
    }
    setup_.group.abort(error.what());  // some ranks wait for buckets that others do not have
  } else if (result.ok()) {
    rpc::MutexLock lock(mutex_);
    for (std::size_t i = 0; i < states_.size(); ++i) {
      if (states_[i].launched || !reached_.any_of(buckets_.parameters(i))) continue;
      prepare(i);
      rest.push_back(i);
    }
  }
  for (const std::size_t bucket : rest) run(bucket, 0);
  ended(std::move(result));
}

void PassReduction::ended(rpc::Result<void> result) {
  std::optional<rpc::Promise<void>> done;
  std::exception_ptr error;
  {
    rpc::MutexLock lock(mutex_);
    if (!result.ok() && error_ == nullptr) error_ = result.error();
    if (--open_ != 0 || !done_) return;
    done = std::exchange(done_, std::nullopt);
    publishing_ = true;
    error = error_;
  }
  if (error == nullptr)
    if (const auto pass = pass_.lock()) {
      const auto published = rpc::capture([&] { publish(*pass); });
      if (!published.ok()) error = published.error();
    }
  {
    rpc::MutexLock lock(mutex_);
    publishing_ = running_ = false;
  }
  done->complete(error == nullptr ? rpc::Result<void>{} : rpc::Result<void>(error));
}

// --- The end ---

void PassReduction::publish(dist_autograd::PassState& pass) {
  const at::NoGradGuard no_grad;
  for (std::size_t bucket = 0; bucket < states_.size(); ++bucket) {
    if (!states_[bucket].launched) continue;
    buckets_.publish(bucket, reached_, [&](std::size_t index, const at::Tensor& average, bool had_gradient) {
      at::Tensor& own = parameters_[index].sparse;
      if (own.defined())
        own.copy_(average);
      else if (!parameters_[index].reached && !had_gradient)
        pass.accumulate(setup_.parameters[index].tensor, average, 0);
    });
  }
  buckets_.synchronize();  // any thread may read the gradients of the pass
}

void PassReduction::pass_ended() {
  {
    const auto pass = pass_.lock();
    rpc::MutexLock lock(mutex_);
    const bool failed_before = backward_ == 0 && pass != nullptr && pass->had_backward();
    if (!running_ && !failed_before) return;
  }
  setup_.group.abort("the backward of pass " + setup_.name + " failed on rank " +
                     std::to_string(setup_.group.rank()) + " before its gradients were reduced");
}

}  // namespace weft::data_parallel
