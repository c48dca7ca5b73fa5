#include <weft/parallel/data_parallel/negotiated/reduction_planner.h>

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
  if (static_cast<int>(entry.requests.size()) == ranks_) return make_ready(name, difference(entry));
  for (const int closed : closed_)
    if (!entry.requests.contains(closed))
      return make_ready(name, rpc::Error(rpc::ErrorKind::failed_precondition,
                                         "all_reduce of '" + name + "': rank " + std::to_string(closed) +
                                             " has destroyed its NegotiatedReduction"));
}

void ReductionPlanner::close(int rank) {
  closed_.insert(rank);
  std::vector<std::string> names;
  for (const auto& [name, entry] : waiting_)
    if (!entry.requests.contains(rank)) names.push_back(name);
  for (const std::string& name : names)
    make_ready(name, rpc::Error(rpc::ErrorKind::failed_precondition,
                                "all_reduce of '" + name + "': rank " + std::to_string(rank) +
                                    " has destroyed its NegotiatedReduction"));
}

bool ReductionPlanner::has_requests_of(int rank) const {
  return !ready_.empty() || std::any_of(waiting_.begin(), waiting_.end(), [&](const auto& each) {
    return each.second.requests.contains(rank);
  });
}

void ReductionPlanner::make_ready(const std::string& name, std::optional<rpc::Error> error) {
  Entry entry = std::move(waiting_.extract(name).mapped());
  Ready ready{std::move(entry.requests.begin()->second), std::move(error)};
  ready_bytes_ += ready.request.bytes;
  ready_.push_back(std::move(ready));
}

std::optional<rpc::Error> ReductionPlanner::difference(const Entry& entry) {
  const auto& [first_rank, first] = *entry.requests.begin();
  for (const auto& [rank, request] : entry.requests)
    if (request.meaning != first.meaning)
      return rpc::Error(rpc::ErrorKind::invalid_argument,
                        "all_reduce of '" + first.name + "': rank " + std::to_string(first_rank) + " has " +
                            first.meaning + ", rank " + std::to_string(rank) + " has " + request.meaning);
  return std::nullopt;
}

std::vector<ReductionLaunch> ReductionPlanner::plan(std::uint64_t fusion_bytes, std::uint64_t max_request) {
  struct Open {
    std::size_t launch;
    std::uint64_t bytes;
  };
  std::vector<ReductionLaunch> launches;
  std::map<std::string, Open> open;  // by kind: the launch that further requests are fused into
  for (Ready& ready : std::exchange(ready_, {})) {
    ReductionRequest& request = ready.request;
    if (ready.error) {
      launches.push_back(
          {{request.name}, ready.error->what(), static_cast<std::uint16_t>(ready.error->kind())});
      continue;
    }
    if (request.bytes > max_request) {
      launches.push_back({{std::move(request.name)}});
      continue;
    }
    const auto found = open.find(request.kind);
    if (found != open.end() && found->second.bytes + request.bytes <= fusion_bytes) {
      launches[found->second.launch].names.push_back(std::move(request.name));
      found->second.bytes += request.bytes;
    } else {
      open.insert_or_assign(request.kind, Open{launches.size(), request.bytes});
      launches.push_back({{std::move(request.name)}});
    }
  }
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
      (entry.requests.contains(rank) ? stall.ready : stall.missing).push_back(rank);
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
