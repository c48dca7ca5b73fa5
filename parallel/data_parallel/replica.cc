#include <weft/parallel/data_parallel/replica.h>

#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <map>
#include <sstream>

namespace weft::data_parallel {
namespace {

std::string text_of(const std::string& name, const at::Tensor& tensor) {
  std::ostringstream text;
  text << name << ' ' << tensor.scalar_type() << tensor.sizes() << " on " << tensor.device().type()
       << (tensor.requires_grad() ? ", requires grad" : "");
  return text.str();
}

std::vector<std::string> sparse_parameters(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& entry : module.named_modules("", true)) {
    const auto is_sparse = [&] {
      if (const auto* one = entry.value()->as<torch::nn::EmbeddingImpl>()) return one->options.sparse();
      if (const auto* bag = entry.value()->as<torch::nn::EmbeddingBagImpl>()) return bag->options.sparse();
      return false;
    };
    if (is_sparse()) names.push_back(entry.key().empty() ? "weight" : entry.key() + ".weight");
  }
  return names;
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// One collective for the tensors of each dtype and device.
void broadcast(const collectives::Group& group, const std::vector<at::Tensor>& tensors, int source) {
  std::map<std::pair<at::ScalarType, std::string>, std::vector<at::Tensor>> groups;
  for (const at::Tensor& tensor : tensors)
    groups[{tensor.scalar_type(), tensor.device().str()}].push_back(tensor.detach());
  std::vector<rpc::Future<void>> in_flight;
  for (auto& [kind, same] : groups) in_flight.push_back(group.broadcast(std::move(same), source));
  for (auto& each : in_flight) each.get();
}

}  // namespace

Replica::NoSync::NoSync(Reducer& reducer) : reducer_(reducer), before_(reducer.sync()) {
  reducer_.set_sync(false);
}
Replica::NoSync::~NoSync() { reducer_.set_sync(before_); }

Replica::Replica(collectives::Group group, std::shared_ptr<torch::nn::Module> module, Options options)
    : options_(std::move(options)), module_(std::move(module)), group_(std::move(group)) {
  std::vector<std::string> sparse = sparse_parameters(*module_);
  sparse.insert(sparse.end(), options_.sparse.begin(), options_.sparse.end());
  for (const auto& entry : module_->named_parameters())
    if (entry.value().requires_grad() && !is_ignored(entry.key()))
      parameters_.push_back({entry.key(), entry.value(), contains(sparse, entry.key())});
  for (const auto& entry : module_->named_buffers())
    if (!is_ignored(entry.key())) buffers_.emplace_back(entry.key(), entry.value());
  if (parameters_.empty())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "DistributedDataParallel: the module has no parameters that require grad");
  compare();
  broadcast_all(0);
  reducer_ = Reducer::make(group_, parameters_, options_);
}

bool Replica::is_ignored(const std::string& name) const { return contains(options_.ignored, name); }

std::vector<std::string> Replica::parameter_names() const {
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters_) names.push_back(parameter.name);
  return names;
}

void Replica::compare() const {
  std::vector<std::string> own;
  for (const NamedParameter& parameter : parameters_)
    own.push_back("parameter " + text_of(parameter.name, parameter.tensor));
  for (const auto& [name, tensor] : buffers_) own.push_back("buffer " + text_of(name, tensor));
  const auto all = group_.all_gather_object(own).get();
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto [first, other] =
        std::mismatch(all[0].begin(), all[0].end(), all[rank].begin(), all[rank].end());
    const auto has = [](const std::string& member, auto entry, auto end) {
      return member + " has " + (entry == end ? "no further one" : *entry);
    };
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "DistributedDataParallel: the ranks have different modules: " + has("rank 0", first, all[0].end()) +
            ", " + has("rank " + std::to_string(rank), other, all[rank].end()));
  }
}

void Replica::broadcast_all(int source) const {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters_) tensors.push_back(parameter.tensor);
  for (const auto& [name, tensor] : buffers_) tensors.push_back(tensor);
  for (const auto& entry : module_->named_parameters())
    if (!entry.value().requires_grad() && !is_ignored(entry.key())) tensors.push_back(entry.value());
  broadcast(group_, tensors, source);
}

void Replica::set_group(collectives::Group group) {
  group_ = std::move(group);
  compare();
  broadcast_all(0);
  reducer_->set_group(group_);
}

// --- Buffers ---

bool Replica::shares_buffers() const {
  return module_->is_training() && reducer_->sync() && !buffers_.empty() &&
         options_.buffers != Buffers::local;
}

void Replica::before_forward() {
  if (!c10::GradMode::is_enabled()) return;
  const int source = join_ ? exchange(true).source.value() : 0;
  if (shares_buffers()) share_buffers(source);
}

void Replica::share_buffers(int source) const {
  std::vector<at::Tensor> of_source;
  std::vector<rpc::Future<void>> in_flight;
  for (const auto& [name, buffer] : buffers_) {
    if (options_.buffers == Buffers::average && buffer.is_floating_point()) {
      in_flight.push_back(group_.all_reduce(buffer, collectives::ReduceOp::avg));
    } else {
      of_source.push_back(buffer);
    }
  }
  for (auto& each : in_flight) each.get();
  broadcast(group_, of_source, source);
}

// --- Join ---

void Replica::begin_join(const JoinOptions& options, std::vector<Joinable*> others) {
  join_ = Join{options, std::move(others)};
}

Replica::Round Replica::exchange(bool has_batch) {
  constexpr std::uint8_t batch = 1, reduces = 2, buffers = 4;
  at::Tensor own = at::zeros({1}, at::kByte), all = at::zeros({group_.size()}, at::kByte);
  if (has_batch) own.fill_(batch | (reducer_->sync() ? reduces : 0) | (shares_buffers() ? buffers : 0));
  group_.inlined().all_gather(all, own).get();
  Round round;
  int active = 0;
  const auto* flags = all.const_data_ptr<std::uint8_t>();
  for (int rank = group_.size() - 1; rank >= 0; --rank) {
    if ((flags[rank] & batch) == 0) continue;
    ++active;
    round = {rank, (flags[rank] & reduces) != 0, (flags[rank] & buffers) != 0};
  }
  if (round.source) join_->last_source = *round.source;
  if (join_->options.throw_early && active < group_.size() && active > 0) {
    const auto without =
        std::find_if(flags, flags + group_.size(), [](auto flag) { return (flag & batch) == 0; });
    throw rpc::Error(rpc::ErrorKind::failed_precondition, "join: rank " + std::to_string(without - flags) +
                                                              " has no batch left, but rank " +
                                                              std::to_string(*round.source) + " has one");
  }
  reducer_->set_active(join_->options.divide_by_active && active > 0 ? active : group_.size());
  return round;
}

// The order on each group is that of a rank with a batch: this module's buffers come first and its gradients
// last, since backward ends when they are reduced.
void Replica::drain_join() {
  const std::vector<Joinable*> others = join_->others;
  for (Round round = exchange(false); round.source; round = exchange(false)) {
    if (round.shares_buffers) share_buffers(*round.source);
    for (Joinable* other : others) other->shadow_forward(*round.source);
    for (auto other = others.rbegin(); other != others.rend(); ++other) (*other)->shadow_backward();
    if (round.reduces) reducer_->shadow();
  }
  broadcast_all(join_->last_source);
  for (Joinable* other : others) other->finish_join(join_->last_source);
  reducer_->set_active(group_.size());
}

}  // namespace weft::data_parallel
