#include <weft/parallel/data_parallel/replica.h>

#include <weft/parallel/data_parallel/hooks/cast_hook.h>
#include <weft/parallel/data_parallel/hooks/model_averager.h>
#include <weft/parallel/data_parallel/internal/reducer.h>
#include <weft/parallel/data_parallel/internal/sparse_gradients.h>
#include <weft/parallel/training/broadcast_state.h>
#include <weft/parallel/training/internal/agreement.h>
#include <weft/rpc/core/when_all.h>

#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>

namespace weft::data_parallel {
namespace {

constexpr std::string_view requires_grad_text = ", requires grad";

std::string text_of(const std::string& name, const at::Tensor& tensor) {
  std::ostringstream text;
  text << name << ' ' << tensor.scalar_type() << tensor.sizes();
  if (!tensor.is_contiguous()) text << " with strides " << tensor.strides();
  text << " on " << tensor.device().type() << (tensor.requires_grad() ? requires_grad_text : "");
  return text.str();
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Tensors by name, each once: the same tensor may have several names.
struct Named {
  std::vector<std::string> names;
  at::Tensor tensor;
};

template <class Dict>
std::vector<Named> each_once(const Dict& dict) {
  std::vector<Named> all;
  for (const auto& entry : dict) {
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const Named& other) { return other.tensor.is_same(entry.value()); });
    if (same != all.end()) {
      same->names.push_back(entry.key());
    } else {
      all.push_back({{entry.key()}, entry.value()});
    }
  }
  return all;
}

bool has_name_in(const Named& tensor, const std::vector<std::string>& names) {
  return std::any_of(tensor.names.begin(), tensor.names.end(),
                     [&](const std::string& name) { return contains(names, name); });
}

collectives::Group own_group(const collectives::Group& group) {
  return group.split(0, group.rank()).get().value();
}

}  // namespace

// The passes that are attached, until they end. Thread-safe.
class Replica::Passes {
 public:
  // Returns whether the caller must attach the pass. If it must not, the promise gets the result of the call
  // that does. reduces: false: a pass that is not attached yet is not added.
  bool add(const dist_autograd::PassId& id, bool reduces, rpc::Promise<void> promise) {
    rpc::MutexLock lock(mutex_);
    const auto found = attached_.find(id);
    if (found == attached_.end()) {
      if (reduces) attached_[id].waiting.push_back(std::move(promise));
      return true;
    }
    Attached& attached = found->second;
    if (!attached.result) {
      attached.waiting.push_back(std::move(promise));
      return false;
    }
    auto result = *attached.result;
    lock.unlock();
    promise.complete(std::move(result));
    return false;
  }
  void set(const dist_autograd::PassId& id, std::shared_ptr<PassReduction> reduction) {
    rpc::MutexLock lock(mutex_);
    if (const auto found = attached_.find(id); found != attached_.end())
      found->second.reduction = std::move(reduction);
  }
  void complete(const dist_autograd::PassId& id, rpc::Result<void> result) {
    std::vector<rpc::Promise<void>> waiting;
    {
      rpc::MutexLock lock(mutex_);
      const auto found = attached_.find(id);
      if (found == attached_.end()) return;
      found->second.result = result;
      waiting.swap(found->second.waiting);
    }
    for (auto& promise : waiting) promise.complete(result);
  }
  void remove(const dist_autograd::PassId& id) {
    decltype(attached_)::node_type removed;  // its promises complete after the lock is released
    rpc::MutexLock lock(mutex_);
    removed = attached_.extract(id);
  }
  // Null: the pass is not attached.
  std::shared_ptr<PassReduction> find(const dist_autograd::PassId& id) const {
    rpc::MutexLock lock(mutex_);
    const auto found = attached_.find(id);
    return found == attached_.end() ? nullptr : found->second.reduction;
  }

 private:
  struct Attached {
    std::shared_ptr<PassReduction> reduction = {};
    std::optional<rpc::Result<void>> result = {};  // of the exchange of buffers
    std::vector<rpc::Promise<void>> waiting = {};  // for this result
  };
  mutable rpc::Mutex mutex_;
  std::map<dist_autograd::PassId, Attached> attached_ WEFT_GUARDED_BY(mutex_);
};

Replica::NoSync::NoSync(Reducer& reducer) : reducer_(reducer), before_(reducer.sync()) {
  reducer_.set_sync(false);
}
Replica::NoSync::~NoSync() { reducer_.set_sync(before_); }

Replica::NoSync Replica::no_sync() { return NoSync(*reducer_); }

void Replica::set_on_reduced(std::function<void(std::size_t parameter)> f) {
  reducer_->set_on_reduced(std::move(f));
}

BucketPlan Replica::plan() const { return reducer_->plan(); }
IterationStats Replica::last() const { return reducer_->last(); }
Overlap Replica::overlap() const { return reducer_->overlap(); }

Replica::Replica(const collectives::Group& group, std::shared_ptr<torch::nn::Module> module, Options options)
    : options_(std::move(options)),
      module_(std::move(module)),
      group_(own_group(group)),
      passes_(std::make_shared<Passes>()) {
  const std::vector<Named> parameters = each_once(module_->named_parameters());
  const std::vector<Named> buffers = each_once(module_->named_buffers());
  for (const auto& names : {options_.ignored, options_.sparse})
    for (const std::string& name : names)
      if (!module_->named_parameters().contains(name) && !module_->named_buffers().contains(name))
        throw rpc::Error(
            rpc::ErrorKind::invalid_argument,
            "DistributedDataParallel: the module has no parameter or buffer " + name +
                ", expected names of its parameters and buffers in Options::ignored and Options::sparse");
  std::vector<std::string> sparse = sparse_parameters(*module_);
  sparse.insert(sparse.end(), options_.sparse.begin(), options_.sparse.end());
  for (const Named& each : parameters) {
    if (!has_name_in(each, options_.ignored))
      parameters_.push_back({each.names.front(), each.tensor, has_name_in(each, sparse)});
  }
  for (const Named& each : buffers) {
    if (has_name_in(each, options_.ignored)) continue;
    buffers_.emplace_back(each.names.front(), each.tensor);
    if (options_.mixed_precision.buffers && each.tensor.is_floating_point())
      each.tensor.set_data(each.tensor.detach().to(*options_.mixed_precision.buffers));
  }
  if (compare(false)) {
    training::share_requires_grad(group_, this->parameters(),
                                  0);  // the other ranks may have frozen all parameters
  } else if (std::none_of(parameters_.begin(), parameters_.end(),
                          [](const NamedParameter& each) { return each.tensor.requires_grad(); })) {
    throw rpc::Error(
        rpc::ErrorKind::invalid_argument,
        "DistributedDataParallel: the module has no parameters that require grad, expected at least one");
  }
  if (options_.init_sync) broadcast_all(0);
  if (options_.mixed_precision.parameters)
    low_precision_ = std::make_shared<LowPrecision>(this->parameters(), *options_.mixed_precision.parameters);
  reducer_ = Reducer::make(group_, parameters_, options_, low_precision_);
  set_hook(nullptr);
}

Replica::~Replica() {
  if (std::uncaught_exceptions() > exceptions_)
    (void)rpc::capture([&] { abort("an exception has destroyed its DistributedDataParallel"); });
}

void Replica::abort(const std::string& reason) const {
  group_.abort("rank " + std::to_string(group_.rank()) + " has left the iteration: " + reason);
}

void Replica::set_hook(std::shared_ptr<CommunicationHook> hook) {
  if (options_.mixed_precision.reduction)
    hook = std::make_shared<CastHook>(*options_.mixed_precision.reduction, std::move(hook));
  reducer_->set_hook(std::move(hook));
}

std::vector<std::string> Replica::parameter_names() const { return names_of(parameters_); }

std::vector<at::Tensor> Replica::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters_) tensors.push_back(parameter.tensor);
  return tensors;
}

// Returns whether the parameters that require grad are to be those of rank 0. A rank that joins a group of
// others, which call set_group(), constructs its replica, and does not know what they have frozen and
// unfrozen.
bool Replica::compare(bool has_new_group) const {
  std::vector<std::string> own{has_new_group && options_.init_sync ? "set_group" : ""};
  for (const NamedParameter& parameter : parameters_)
    own.push_back("parameter " + text_of(parameter.name, parameter.tensor));
  for (const auto& [name, tensor] : buffers_) own.push_back("buffer " + text_of(name, tensor));
  auto all = group_.all_gather_object(own).get();
  const bool follows =
      std::any_of(all.begin(), all.end(), [](const auto& rank) { return !rank.front().empty(); });
  for (std::vector<std::string>& rank : all) {
    rank.erase(rank.begin());
    for (std::string& text : rank)
      if (follows && text.ends_with(requires_grad_text)) text.resize(text.size() - requires_grad_text.size());
  }
  if (const auto difference = training::difference_of(all, "no further one"))
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "DistributedDataParallel: the ranks have different modules: " + *difference);
  return follows;
}

void Replica::broadcast_all(int source, bool with_buffers) const {
  std::vector<at::Tensor> tensors = parameters();
  if (with_buffers)
    for (const auto& [name, tensor] : buffers_) tensors.push_back(tensor);
  training::broadcast_tensors(group_, tensors, source).get();
}

void Replica::set_group(const collectives::Group& group) {
  group_ = own_group(group);
  if (compare(true)) training::share_requires_grad(group_, parameters(), 0);
  if (options_.init_sync) broadcast_all(0);
  reducer_->set_group(group_);
}

// --- Buffers ---

bool Replica::shares_buffers() const {
  return module_->is_training() && reducer_->sync() && !buffers_.empty() &&
         (buffer_hook_.run || options_.buffers != Buffers::local);
}

void Replica::before_forward() {
  if (!c10::GradMode::is_enabled()) return;
  reducer_->begin_forward();
  const int source = join_ ? exchange(true).source.value() : 0;
  if (shares_buffers() && !shares_after_forward()) share_buffers(source).get();
}

void Replica::after_forward() {
  if (c10::GradMode::is_enabled() && shares_after_forward() && shares_buffers())
    reducer_->wait_for(share_buffers(join_ ? join_->last_source : 0));
}

void Replica::watch(const at::Tensor& output) {
  if (low_precision_ != nullptr) low_precision_->watch(output);
  reducer_->watch(output);
}

rpc::Future<void> Replica::attach(const dist_autograd::Pass& pass, std::string name) {
  if (low_precision_ != nullptr)
    throw rpc::Error(rpc::ErrorKind::unsupported,
                     "attach: the backward of a pass cannot use the copies of MixedPrecision::parameters: "
                     "use an Autocast guard in forward");
  if (!c10::GradMode::is_enabled()) return rpc::Future<void>::made(rpc::Result<void>{});
  if (join_ && !name.empty())
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "attach: the pass has the name " + name +
                         ", expected none within a join: a rank without a batch does not know it");
  if (const auto reduction = passes_->find(pass.id()))
    if (const std::string* const unfrozen = reduction->unfrozen()) {
      const std::string text = "attach: parameter " + *unfrozen +
                               " has begun to require grad after the first forward of the pass: unfreeze "
                               "parameters between passes";
      abort(text);
      throw rpc::Error(rpc::ErrorKind::failed_precondition, text);
    }
  const bool reduces = reducer_->sync();
  rpc::Promise<void> promise;
  auto future = promise.future();
  if (!passes_->add(pass.id(), reduces, std::move(promise))) return future;
  auto buffers = rpc::Future<void>::made(rpc::Result<void>{});
  auto begun = rpc::capture([&] {
    const int source = join_ ? exchange(true, true).source.value() : 0;
    if (!reduces) return;
    const auto reduction = reducer_->make_pass_reduction(std::move(name));
    if (shares_buffers()) buffers = share_buffers_in_pass(*reduction, source);
    reduction->attach(pass.state());
    passes_->set(pass.id(), reduction);
  });
  if (!begun.ok()) buffers = rpc::Future<void>::made(std::move(begun));
  if (!reduces) return buffers;
  pass.state()->on_end([weak = std::weak_ptr(passes_), id = pass.id()] {
    if (const auto passes = weak.lock()) passes->remove(id);
  });
  buffers.then([passes = passes_, id = pass.id()](rpc::Result<void>&& result) {
    passes->complete(id, std::move(result));
  });
  return future;
}

void Replica::attach_now(const dist_autograd::Pass& pass) {
  auto attached = attach(pass);
  if (!attached.ready()) {
    try {
      rpc::detail::refuse_blocking(nullptr);
    } catch (const rpc::Error& error) {
      throw rpc::Error(error.kind(), std::string("forward(pass, ...): the ranks exchange buffers: co_await "
                                                 "attach(pass) before forward in a handler: ") +
                                         error.what());
    }
  }
  attached.get();
}

rpc::Future<void> Replica::share_buffers(int source) const {
  // As LibTorch's own updates of buffers, this one leaves their versions: a graph that has saved a running
  // mean can still run its backward.
  BufferHook::Buffers buffers;
  for (const auto& [name, buffer] : buffers_) buffers.emplace_back(name, buffer.variable_data());
  if (buffer_hook_.run) return buffer_hook_.run(group_, buffers, source);
  std::vector<at::Tensor> averaged, of_source;
  for (const auto& [name, buffer] : buffers) {
    const bool averages = options_.buffers == Buffers::average && buffer.is_floating_point();
    (averages ? averaged : of_source).push_back(buffer);
  }
  std::vector<rpc::Future<void>> in_flight;
  if (!averaged.empty()) in_flight.push_back(average_tensors(group_, averaged));
  in_flight.push_back(training::broadcast_tensors(group_, of_source, source));
  return rpc::when_all(std::move(in_flight));
}

// Collectives of other passes may be in flight: a launch gives all of them one order on all ranks.
rpc::Future<void> Replica::share_buffers_in_pass(const PassReduction& pass, int source) const {
  return group_.launch("pass " + pass.name() + ", buffers", [this, source] { return share_buffers(source); });
}

// --- Join ---

void Replica::begin_join(const JoinOptions& options, std::vector<Joinable*> others) {
  if (join_)
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "join: the range of an earlier join() still exists, expected one range at a time: destroy it first");
  join_ = Join{options, std::move(others)};
}

void Replica::leave_join() noexcept {
  join_.reset();
  reducer_->set_excluded({});
}

Replica::Round Replica::exchange(bool has_batch, bool in_pass) {
  constexpr std::uint8_t batch = 1, reduces = 2, buffers = 4, pass = 8;
  at::Tensor own = at::zeros({1}, at::kByte), all = at::zeros({group_.size()}, at::kByte);
  if (has_batch)
    own.fill_(batch | (reducer_->sync() ? reduces : 0) | (shares_buffers() ? buffers : 0) |
              (in_pass ? pass : 0));
  group_.inlined().all_gather(all, own).get();
  Round round;
  int active = 0;
  join_->without_batch.clear();
  const auto* flags = all.const_data_ptr<std::uint8_t>();
  for (int rank = group_.size() - 1; rank >= 0; --rank) {
    if ((flags[rank] & batch) == 0) {
      join_->without_batch.push_back(rank);
      continue;
    }
    ++active;
    round = {rank, (flags[rank] & reduces) != 0, (flags[rank] & buffers) != 0, (flags[rank] & pass) != 0};
  }
  if (round.source) join_->last_source = *round.source;
  if (join_->options.throw_early && active < group_.size() && active > 0) {
    const auto without =
        std::find_if(flags, flags + group_.size(), [](auto flag) { return (flag & batch) == 0; });
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "join: rank " + std::to_string(without - flags) + " has no batch left, but rank " +
                         std::to_string(*round.source) +
                         " has one, expected the same number of batches on all ranks");
  }
  reducer_->set_excluded(join_->options.divide_by_active && active > 0 ? join_->without_batch
                                                                       : std::vector<int>());
  return round;
}

// On each group, the collectives have the order of a rank with a batch. This module's buffers are first and
// its gradients last, since backward ends when the gradients are reduced.
void Replica::drain_join() {
  const std::vector<Joinable*> others = join_->others;
  for (Round round = exchange(false); round.source; round = exchange(false)) {
    const auto pass = round.in_pass && round.reduces ? reducer_->make_pass_reduction({}) : nullptr;
    if (round.shares_buffers && (pass != nullptr || !shares_after_forward()))
      (pass != nullptr ? share_buffers_in_pass(*pass, *round.source) : share_buffers(*round.source)).get();
    for (Joinable* other : others) other->shadow_forward(*round.source);
    if (round.shares_buffers && pass == nullptr && shares_after_forward())
      reducer_->wait_for(share_buffers(*round.source));
    for (auto other = others.rbegin(); other != others.rend(); ++other) (*other)->shadow_backward();
    if (pass != nullptr) {
      pass->shadow().get();
    } else if (round.reduces) {
      reducer_->shadow();
    }
    if (round.reduces)
      for (Joinable* other : others) other->shadow_step(*round.source);
  }
  join_source_ = join_->last_source;
  broadcast_all(join_source_, options_.buffers != Buffers::local);
  for (Joinable* other : others) other->finish_join(join_source_);
  reducer_->set_excluded({});
}

}  // namespace weft::data_parallel
