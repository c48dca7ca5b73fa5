#include <weft/parallel/data_parallel/negotiated/internal/reduction_planner.h>

#include <weft/parallel/collectives/operation/reduce_op.h>

#include <algorithm>

namespace weft::data_parallel {
namespace {

std::string text_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

void ReductionPlanner::add(int rank, ReductionRequest request, Time now) {
  const std::string name = request.name;
  Entry& entry = waiting_.try_emplace(name, Entry{now, {}}).first->second;
  entry.requests.emplace(rank, std::move(request));
  if (is_complete(entry)) return make_ready(name, error_of(entry));
  for (const int closed : closed_)
    if (!entry.requests.contains(closed))
      return make_ready(name, rpc::Error(rpc::ErrorKind::failed_precondition,
                                         "all_reduce of '" + name + "': rank " + std::to_string(closed) +
                                             " has destroyed its NegotiatedReduction"));
}

void ReductionPlanner::close(int rank) {
  closed_.insert(rank);
  joined_.erase(rank);
  if (!joined_.empty()) end_join(rank);
  std::vector<std::string> names;
  for (const auto& [name, entry] : waiting_)
    if (!entry.requests.contains(rank)) names.push_back(name);
  for (const std::string& name : names)
    make_ready(name, rpc::Error(rpc::ErrorKind::failed_precondition,
                                "all_reduce of '" + name + "': rank " + std::to_string(rank) +
                                    " has destroyed its NegotiatedReduction"));
}

void ReductionPlanner::join(int rank) {
  joined_.insert(rank);
  std::vector<std::string> names;
  for (const auto& [name, entry] : waiting_)
    if (is_complete(entry)) names.push_back(name);
  for (const std::string& name : names) make_ready(name, error_of(waiting_.at(name)));
  if (static_cast<int>(joined_.size()) == ranks_ || !closed_.empty()) end_join(rank);
}

void ReductionPlanner::end_join(int last) {
  join_end_ = JoinEnd{last};
  if (!closed_.empty())
    join_end_->error =
        "join: rank " + std::to_string(*closed_.begin()) + " has destroyed its NegotiatedReduction";
  joined_.clear();
}

bool ReductionPlanner::is_complete(const Entry& entry) const {
  auto joined = joined_;
  for (const auto& [rank, request] : entry.requests) joined.erase(rank);
  return static_cast<int>(entry.requests.size() + joined.size()) == ranks_;
}

bool ReductionPlanner::has_requests_of(int rank) const {
  return !ready_.empty() || std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& each) {
    return each.second.requests.contains(rank);
  });
}

void ReductionPlanner::make_ready(const std::string& name, std::optional<rpc::Error> error) {
  Entry entry = std::move(waiting_.extract(name).mapped());
  Ready ready{{}, std::move(error)};
  ready.has_zeros = static_cast<int>(entry.requests.size()) < ranks_;
  if (entry.requests.begin()->second.form.sparse_dim != 0) {
    ready.rows.resize(static_cast<std::size_t>(ranks_));
    for (const auto& [rank, request] : entry.requests)
      ready.rows[static_cast<std::size_t>(rank)] = request.rows;
  }
  ready.request = std::move(entry.requests.begin()->second);
  ready_bytes_ += ready.request.bytes;
  ready_.push_back(std::move(ready));
}

std::optional<rpc::Error> ReductionPlanner::error_of(const Entry& entry) const {
  const auto& [first_rank, first] = *entry.requests.begin();
  for (const auto& [rank, request] : entry.requests)
    if (!request.refusal.empty())
      return rpc::Error(rpc::ErrorKind::invalid_argument,
                        "rank " + std::to_string(rank) + " has refused it: " + request.refusal);
  for (const auto& [rank, request] : entry.requests)
    if (request.meaning != first.meaning)
      return rpc::Error(rpc::ErrorKind::invalid_argument,
                        "all_reduce of '" + first.name + "': rank " + std::to_string(first_rank) + " has " +
                            first.meaning + ", rank " + std::to_string(rank) + " has " + request.meaning);
  using collectives::ReduceOp;
  const ReduceOp op{static_cast<ReduceOp::Kind>(first.form.op)};
  if (op.kind != ReduceOp::Kind::sum && op.kind != ReduceOp::Kind::avg)
    for (const int rank : joined_)
      if (!entry.requests.contains(rank))
        return rpc::Error(rpc::ErrorKind::failed_precondition,
                          "all_reduce of '" + first.name + "': the operation is " + op.name() +
                              ", but rank " + std::to_string(rank) +
                              " has joined and contributes zeros: expected sum or avg");
  return std::nullopt;
}

std::vector<ReductionLaunch> ReductionPlanner::plan(std::uint64_t fusion_bytes, std::uint64_t max_request) {
  struct Open {
    std::size_t launch;
    std::uint64_t bytes;
  };
  std::vector<ReductionLaunch> launches;
  std::map<std::string, Open> open;  // by kind: the launch that further requests are fused into
  std::set<std::size_t> with_zeros;  // launches
  for (Ready& ready : std::exchange(ready_, {})) {
    ReductionRequest& request = ready.request;
    if (ready.error) {
      launches.push_back(
          {{request.name}, ready.error->what(), static_cast<std::uint16_t>(ready.error->kind())});
      continue;
    }
    const bool is_sparse = request.form.sparse_dim != 0;
    const bool is_alone = is_sparse || (request.form.place == 0 && request.bytes > max_request);
    const auto found = is_alone ? open.end() : open.find(request.kind);
    std::size_t launch = launches.size();
    if (found != open.end() && found->second.bytes + request.bytes <= fusion_bytes) {
      launch = found->second.launch;
      found->second.bytes += request.bytes;
    } else {
      if (!is_alone) open.insert_or_assign(request.kind, Open{launch, request.bytes});
      launches.push_back({});
      launches.back().rows = std::move(ready.rows);
    }
    launches[launch].names.push_back(std::move(request.name));
    launches[launch].forms.push_back(std::move(request.form));
    if (ready.has_zeros) with_zeros.insert(launch);
  }
  for (std::size_t launch = 0; launch < launches.size(); ++launch)
    if (!with_zeros.contains(launch)) launches[launch].forms.clear();
  ready_bytes_ = 0;
  return launches;
}

std::string ReductionPlanner::Stall::text() const {
  return "ready on " + text_of(ready) + "; missing " + text_of(missing);
}

std::vector<ReductionPlanner::Stall> ReductionPlanner::stalled(Time now,
                                                               std::chrono::nanoseconds limit) const {
  std::vector<Stall> all;
  for (const auto& [name, entry] : waiting_) {
    if (now - entry.since < limit) continue;
    Stall& stall = all.emplace_back(Stall{name, entry.since, {}, {}});
    for (int rank = 0; rank < ranks_; ++rank)
      if (entry.requests.contains(rank))
        stall.ready.push_back(rank);
      else if (!joined_.contains(rank))
        stall.missing.push_back(rank);
  }
  std::stable_sort(all.begin(), all.end(), [](const Stall& a, const Stall& b) { return a.since < b.since; });
  return all;
}

std::optional<ReductionPlanner::Time> ReductionPlanner::oldest() const {
  std::optional<Time> oldest;
  for (const auto& [name, entry] : waiting_) oldest = std::min(oldest.value_or(entry.since), entry.since);
  return oldest;
}

}  // namespace weft::data_parallel
