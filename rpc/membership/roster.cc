#include <weft/rpc/membership/roster.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace weft::rpc {
namespace {

constexpr std::string_view state_names[] = {"claimed", "joined", "serving", "left", "lost"};

}  // namespace

std::string to_record(const Member& member) {
  // Words and lines, so that a person who looks into a store can read it.
  std::string record(state_names[static_cast<std::size_t>(member.state)]);
  record +=
      " rank " + std::to_string(member.rank) + " incarnation " + std::to_string(member.incarnation) + "\n";
  for (const std::string& address : member.addresses) record += address + "\n";
  return record;
}

Member from_record(std::string name, const std::string& record) {
  Member member;
  std::istringstream lines(record);
  std::string state, rank, incarnation, rest;
  const bool read =
      static_cast<bool>(lines >> state >> rank >> member.rank >> incarnation >> member.incarnation);
  const auto* const found = std::find(std::begin(state_names), std::end(state_names), state);
  if (!read || rank != "rank" || incarnation != "incarnation" || found == std::end(state_names))
    throw Error(ErrorKind::protocol_error, "the store's record of '" + name + "' is none: " + record);
  member.name = std::move(name);
  member.state = static_cast<MemberState>(found - std::begin(state_names));
  std::getline(lines, rest);
  for (std::string address; std::getline(lines, address);) member.addresses.push_back(std::move(address));
  return member;
}

Roster::Roster(const StoreView& view) {
  for (const auto& [key, record] : view.entries) {
    std::string name = key.substr(membership_keys::members.size());
    Member member = from_record(name, record);
    members_.emplace(std::move(name), std::move(member));
  }
}

const Member* Roster::find(const std::string& name) const {
  const auto found = members_.find(name);
  return found == members_.end() ? nullptr : &found->second;
}

std::size_t Roster::joined() const {
  return static_cast<std::size_t>(std::count_if(members_.begin(), members_.end(), [](const auto& entry) {
    return entry.second.state != MemberState::claimed;
  }));
}

std::vector<std::string> Roster::awaited_by(const std::string& self, bool host) const {
  std::vector<std::string> names;
  for (const auto& [name, member] : members_) {
    const bool busy = member.state == MemberState::joined || (host && member.state == MemberState::serving);
    if (busy && name != self) names.push_back(name);
  }
  return names;
}

}  // namespace weft::rpc
