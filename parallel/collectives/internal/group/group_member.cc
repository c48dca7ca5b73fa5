#include <weft/parallel/collectives/internal/group/group_member.h>

#include <algorithm>

namespace weft::collectives {

GroupMember::GroupMember(std::shared_ptr<rpc::AgentCore> agent, GroupId id, Options options,
                         std::vector<rpc::AgentId> members, int rank, JobQueue::Failed failed)
    : agent_(std::move(agent)),
      id_(id),
      options_(std::move(options)),
      members_(std::move(members)),
      rank_(rank),
      loop_(agent_->pick_loop()),
      queue_(std::move(failed)) {
  for (const rpc::AgentId& member : members_)
    peers_.push_back(rpc::Peer(agent_, agent_->routes().to_name(member.name, {}))
                         .with({.timeout = rpc::no_timeout})
                         .only(member));
}

int GroupMember::rank_of(const rpc::AgentId& member) const {
  const auto found = std::find(members_.begin(), members_.end(), member);
  return found == members_.end() ? -1 : static_cast<int>(found - members_.begin());
}

std::string GroupMember::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (" + members_[static_cast<std::size_t>(rank)].name + ")";
}

rpc::Error GroupMember::difference(const std::map<int, std::string>& texts) const {
  std::map<std::string, std::vector<int>> meant;
  for (const auto& [rank, signature] : texts) meant[signature].push_back(rank);
  std::string text;
  for (const auto& [signature, ranks] : meant) {
    text += text.empty() ? "" : "; ";
    for (const int rank : ranks) text += (rank == ranks.front() ? "" : ", ") + describe(rank);
    text += ": " + signature;
  }
  return error(rpc::ErrorKind::invalid_argument, "the ranks call different collectives: " + text);
}

}  // namespace weft::collectives
