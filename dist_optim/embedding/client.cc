#include <weft/dist_optim/embedding/client.h>

#include <weft/dist_autograd/pass_state.h>
#include <weft/dist_optim/local/internal/row_tensors.h>
#include <weft/rpc/core/when_all.h>

#include <ATen/ops/empty.h>

#include <cstring>
#include <numeric>

namespace weft::dist_optim {
namespace {

at::Tensor gradients_in(const GradientSums::Sums& sums, const OwnerBatch& batch, std::size_t width) {
  at::Tensor gradients =
      at::empty({static_cast<std::int64_t>(batch.ids.size()), static_cast<std::int64_t>(width)}, at::kFloat);
  auto* to = gradients.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < batch.positions.size(); ++i)
    std::memcpy(to + i * width, &sums.gradients[batch.positions[i] * width], width * sizeof(float));
  return gradients;
}

}  // namespace

std::vector<EmbeddingClient::Shard> EmbeddingClient::shards() const {
  rpc::MutexLock lock(mutex_);
  return shards_;
}

void EmbeddingClient::add(std::size_t known, std::vector<Shard> more) {
  rpc::MutexLock lock(mutex_);
  if (shards_.size() != known) return;  // another call has updated it meanwhile
  shards_.insert(shards_.end(), more.begin(), more.end());
}

rpc::Task<void> EmbeddingClient::follow(Ptr self, Shard shard, std::size_t known, std::size_t owners) {
  if (owners > known) {
    std::vector<Shard> more = co_await shard.call<&EmbeddingShard::later>(static_cast<std::uint32_t>(known));
    self->add(known, std::move(more));
  } else {  // the addition of an owner has failed
    std::vector<Shard> gone;
    rpc::MutexLock lock(self->mutex_);
    if (self->shards_.size() != known) co_return;
    while (self->shards_.size() > owners) {
      gone.push_back(std::move(self->shards_.back()));
      self->shards_.pop_back();
    }
  }
}

rpc::Task<void> EmbeddingClient::refresh(Ptr self) {
  const std::vector<Shard> shards = self->shards();
  const ShardStats stats = co_await shards.front().call<&EmbeddingShard::stats>();
  if (stats.owners != shards.size()) co_await follow(self, shards.front(), shards.size(), stats.owners);
}

rpc::Task<void> EmbeddingClient::ask_owners(Ptr self, std::shared_ptr<const std::vector<std::int64_t>> ids,
                                            Ask ask, Take take) {
  constexpr int max_rounds = 1000;  // few rounds suffice, except while an addition is being undone
  std::vector<std::size_t> open(ids->size());
  std::iota(open.begin(), open.end(), std::size_t{0});
  for (int round = 0; !open.empty(); ++round) {
    if (round == max_rounds)
      throw rpc::Error(rpc::ErrorKind::aborted, "embedding: its owners disagree on the number of owners");
    const std::vector<Shard> shards = self->shards();
    std::vector<OwnerBatch> batches = split_by_owner(*ids, open, static_cast<std::uint32_t>(shards.size()));
    std::vector<rpc::Future<ShardAnswer>> asked;
    std::vector<std::size_t> whom;
    for (std::size_t owner = 0; owner < shards.size(); ++owner) {
      if (batches[owner].ids.empty()) continue;
      whom.push_back(owner);
      asked.push_back(ask(shards[owner], batches[owner]));
    }
    auto all = rpc::when_all(std::move(asked));
    const std::vector<ShardAnswer> answers = co_await std::move(all);
    open.clear();
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const OwnerBatch& batch = batches[whom[i]];
      if (answers[i].refused) {
        open.insert(open.end(), batch.positions.begin(), batch.positions.end());
      } else {
        take(batch, answers[i]);
      }
    }
    for (std::size_t i = 0; i < answers.size(); ++i)
      if (answers[i].refused) co_await follow(self, shards[whom[i]], shards.size(), answers[i].owners);
  }
}

rpc::Task<at::Tensor> EmbeddingClient::lookup(Ptr self, Ids ids, bool make) {
  const std::size_t width = self->dimension_;
  at::Tensor rows =
      at::empty({static_cast<std::int64_t>(ids->ids.size()), static_cast<std::int64_t>(width)}, at::kFloat);
  Ask ask = [make](const Shard& shard, const OwnerBatch& batch) {
    return shard.call<&EmbeddingShard::lookup>(tensor_of(batch.ids), make);
  };
  Take take = [rows, width](const OwnerBatch& batch, const ShardAnswer& answer) {
    const auto from = floats_in(answer.rows, batch.ids.size(), width, "rows of a shard");
    auto* to = rows.mutable_data_ptr<float>();
    for (std::size_t i = 0; i < batch.positions.size(); ++i)
      std::memcpy(to + batch.positions[i] * width, &from[i * width], width * sizeof(float));
  };
  std::shared_ptr<const std::vector<std::int64_t>> all(ids, &ids->ids);
  co_await ask_owners(self, all, ask, take);
  co_return rows;
}

rpc::Task<void> EmbeddingClient::update(Ptr self, std::shared_ptr<const GradientSums::Sums> sums) {
  const std::size_t width = self->dimension_;
  Ask ask = [sums, width](const Shard& shard, const OwnerBatch& batch) {
    return shard.call<&EmbeddingShard::update>(tensor_of(batch.ids), gradients_in(*sums, batch, width));
  };
  Take take = [](const OwnerBatch&, const ShardAnswer&) {};
  std::shared_ptr<const std::vector<std::int64_t>> all(sums, &sums->ids);
  co_await ask_owners(self, all, ask, take);
}

void EmbeddingClient::keep(const std::shared_ptr<dist_autograd::PassState>& pass, LookedUpRows lookup) {
  bool first = false;
  {
    rpc::MutexLock lock(mutex_);
    auto& all = kept_[pass->id()];
    first = all.empty();
    all.push_back(std::move(lookup));
  }
  if (first)
    pass->on_end([weak = weak_from_this(), id = pass->id()] {
      if (const auto self = weak.lock()) self->forget(id);
    });
}

std::vector<EmbeddingClient::LookedUpRows> EmbeddingClient::kept(const dist_autograd::PassId& pass) const {
  rpc::MutexLock lock(mutex_);
  const auto found = kept_.find(pass);
  return found == kept_.end() ? std::vector<LookedUpRows>{} : found->second;
}

void EmbeddingClient::forget(const dist_autograd::PassId& pass) {
  std::vector<LookedUpRows> gone;
  rpc::MutexLock lock(mutex_);
  if (auto found = kept_.extract(pass)) gone = std::move(found.mapped());
}

EmbeddingClient::PassRows EmbeddingClient::gradients_of(std::span<const dist_autograd::Pass> passes) const {
  PassRows rows;
  GradientSums sums(dimension_);
  for (const auto& pass : passes) {
    bool any = false;
    for (const auto& [leaf, ids] : kept(pass.id())) {
      const at::Tensor gradient = pass.gradient(leaf);
      if (!gradient.defined()) continue;
      any = true;
      const at::Tensor plain = gradient.contiguous();
      sums.add(ids->ids, floats_in(plain, ids->ids.size(), dimension_, "gradients").data());
    }
    if (any) rows.passes.push_back(pass.id());
  }
  rows.sums = sums.take();
  return rows;
}

std::vector<rref::ReferencePtr> EmbeddingClient::objects() const {
  std::vector<rref::ReferencePtr> all;
  for (const Shard& shard : shards()) all.push_back(shard.reference());
  return all;
}

std::vector<StepRows> EmbeddingClient::step_rows(std::span<const dist_autograd::Pass> passes,
                                                 std::size_t owners) const {
  if (const std::size_t now = shards().size(); now != owners)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "step: the embedding has " + std::to_string(now) + " owners, and this handle steps " +
                         std::to_string(owners) + ": create the DistributedOptimizer again");
  const PassRows rows = gradients_of(passes);
  std::vector<std::size_t> all(rows.sums.ids.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  std::vector<StepRows> parts;
  for (const OwnerBatch& batch : split_by_owner(rows.sums.ids, all, static_cast<std::uint32_t>(owners)))
    parts.push_back({rows.passes, tensor_of(batch.ids), gradients_in(rows.sums, batch, dimension_)});
  return parts;
}

void EmbeddingClient::admit_with(const std::shared_ptr<const Admit>& admit) {
  rpc::MutexLock lock(mutex_);
  std::erase_if(admissions_, [](const auto& weak) { return weak.expired(); });
  admissions_.push_back(admit);
}

rpc::Task<void> EmbeddingClient::admit(Ptr self, dist_autograd::PassId pass) {
  std::vector<std::weak_ptr<const Admit>> all;
  {
    rpc::MutexLock lock(self->mutex_);
    all = self->admissions_;
  }
  for (const auto& weak : all) {
    const auto admit = weak.lock();
    if (admit == nullptr) continue;
    auto admitted = (*admit)(pass);
    co_await std::move(admitted);
  }
}

}  // namespace weft::dist_optim
