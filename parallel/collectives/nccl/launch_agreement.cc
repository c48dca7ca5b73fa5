#include <weft/parallel/collectives/nccl/launch_agreement.h>

#include <weft/rpc/core/error.h>

namespace weft::collectives::nccl {

using rpc::Error;
using rpc::ErrorKind;

void LaunchAgreement::add(std::uint64_t communicator, int size) {
  if (!communicators_.try_emplace(communicator, Members{size}).second)
    throw Error(ErrorKind::already_exists,
                "communicator " + std::to_string(communicator) + " is known already");
}

void LaunchAgreement::remove(std::uint64_t communicator) { communicators_.erase(communicator); }

std::vector<LaunchKey> LaunchAgreement::ready(LaunchKey launch, int member) {
  const auto found = communicators_.find(launch.communicator);
  if (found == communicators_.end()) return {};
  Members& members = found->second;
  const std::string what = "launch " + std::to_string(launch.sequence) + " of communicator " +
                           std::to_string(launch.communicator) + ": member " + std::to_string(member);
  if (member < 0 || member >= members.size) throw Error(ErrorKind::protocol_error, what + " is none");
  if (launch.sequence < members.next || !members.ready[launch.sequence].insert(member).second)
    throw Error(ErrorKind::protocol_error, what + " was ready before");

  std::vector<LaunchKey> released;
  while (!members.ready.empty()) {
    const auto first = members.ready.begin();
    if (first->first != members.next || static_cast<int>(first->second.size()) < members.size) break;
    released.push_back({launch.communicator, members.next++});
    members.ready.erase(first);
  }
  return released;
}

std::size_t LaunchAgreement::waiting() const {
  std::size_t all = 0;
  for (const auto& [communicator, members] : communicators_) all += members.ready.size();
  return all;
}

}  // namespace weft::collectives::nccl
