#include <weft/rpc/job/membership/roster.h>

#include <weft/rpc/core/parse_number.h>

#include <algorithm>
#include <charconv>
#include <sstream>

namespace weft::rpc {
namespace {

// In the order of MemberState. A member that has released its references has the record of a serving member
// with one more line, which earlier versions of weft skip.
constexpr std::string_view has_released = "has released";
constexpr std::string_view state_names[] = {"claimed", "joined", "serving", "serving", "left", "lost"};
constexpr std::string_view hex_digits = "0123456789abcdef";

// Characters that would end a line or a key are written as %XX.
std::string escape(std::string_view text, bool key) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || c == '%' || (key && c == '=')) {
      escaped += {'%', hex_digits[byte >> 4], hex_digits[byte & 15]};
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const std::size_t high = hex_digits.find(text[i + 1]), low = hex_digits.find(text[i + 2]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    plain += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return plain;
}

// Reads a line after the first one; false if it is malformed.
bool read_line(std::string_view line, MemberRecord& record) {
  const std::size_t space = line.find(' ');
  const std::string_view word = line.substr(0, space);
  if (space == std::string_view::npos) return false;
  const std::string_view rest = line.substr(space + 1);
  if (line == has_released && record.state == MemberState::serving) {
    record.state = MemberState::released;
  } else if (word == "at") {
    auto address = unescape(rest);
    if (!address) return false;
    record.addresses.push_back(*std::move(address));
  } else if (word == "with") {
    const std::size_t equals = rest.find('=');
    if (equals == std::string_view::npos) return false;
    auto key = unescape(rest.substr(0, equals)), value = unescape(rest.substr(equals + 1));
    if (!key || !value) return false;
    record.metadata.insert_or_assign(*std::move(key), *std::move(value));
  } else if (word == "after") {
    EarlierLife incarnation;
    const auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), incarnation.incarnation);
    const std::string_view how(end, static_cast<std::size_t>(rest.data() + rest.size() - end));
    if (error != std::errc{} || (how != " left" && how != " lost")) return false;
    incarnation.left = how == " left";
    record.before = incarnation;
  }  // otherwise the line is from a later version of weft
  return true;
}

}  // namespace

std::string_view to_string(MemberChange change) {
  switch (change) {
    case MemberChange::joined:
      return "joined";
    case MemberChange::left:
      return "left";
    case MemberChange::lost:
      return "lost";
  }
  return "?";
}

std::string to_text(const MemberRecord& record) {
  std::string text(state_names[static_cast<std::size_t>(record.state)]);
  text += " rank " + (record.rank ? std::to_string(*record.rank) : "none") + " incarnation " +
          std::to_string(record.incarnation) + "\n";
  if (record.state == MemberState::released) text += std::string(has_released) + "\n";
  for (const std::string& address : record.addresses) text += "at " + escape(address, false) + "\n";
  for (const auto& [key, value] : record.metadata)
    text += "with " + escape(key, true) + "=" + escape(value, false) + "\n";
  if (record.before)
    text +=
        "after " + std::to_string(record.before->incarnation) + (record.before->left ? " left\n" : " lost\n");
  return text;
}

MemberRecord from_text(std::string name, const std::string& text) {
  MemberRecord record;
  std::istringstream lines(text);
  std::string first, rank_word, rank, incarnation, state, rest;
  std::getline(lines, first);
  std::istringstream words(first);
  bool read = static_cast<bool>(words >> state >> rank_word >> rank >> incarnation >> record.incarnation) &&
              rank_word == "rank" && incarnation == "incarnation" && !(words >> rest);
  const auto* const found = std::find(std::begin(state_names), std::end(state_names), state);
  read = read && found != std::end(state_names);
  if (rank != "none") {
    record.rank = parse_number<std::size_t>(rank);
    read = read && record.rank;
  }
  if (read) record.state = static_cast<MemberState>(found - std::begin(state_names));
  for (std::string line; read && std::getline(lines, line);) read = read_line(line, record);
  if (!read) throw Error(ErrorKind::protocol_error, "malformed store record for '" + name + "': " + text);
  record.name = std::move(name);
  return record;
}

Roster::Roster(const StoreView& view) {
  StoreChanges all{view.version, true, {}};
  for (const auto& [key, text] : view.entries) all.entries.emplace(key, text);
  apply(changed(all));
}

Roster::Records Roster::changed(const StoreChanges& changes) const {
  Records changed;
  if (changes.whole)
    for (const auto& [name, member] : members_) changed.emplace(name, nullptr);
  for (const auto& [key, text] : changes.entries) {
    const std::string name = key.substr(membership_keys::members.size());
    changed[name] = text ? std::make_shared<const MemberRecord>(from_text(name, *text)) : nullptr;
  }
  return changed;
}

Roster::Records Roster::at(const Records& names) const {
  Records records;
  for (const auto& [name, ignored] : names) {
    const auto found = members_.find(name);
    records.emplace_hint(records.end(), name, found == members_.end() ? nullptr : found->second);
  }
  return records;
}

void Roster::apply(const Records& changed) {
  for (const auto& [name, record] : changed) {
    if (const auto found = members_.find(name); found != members_.end()) {
      --count_of(*found->second);
      if (record == nullptr) members_.erase(found);
    }
    if (record == nullptr) continue;
    ++count_of(*record);
    members_[name] = record;
  }
}

const MemberRecord* Roster::find(const std::string& name) const {
  const auto found = members_.find(name);
  return found == members_.end() ? nullptr : found->second.get();
}

std::size_t Roster::joined() const { return members_.size() - count(MemberState::claimed); }

std::size_t Roster::here() const {
  return count(MemberState::joined) + count(MemberState::serving) + count(MemberState::released);
}

bool Roster::idle(const std::string& self) const {
  const MemberRecord* const own = find(self);
  return count(MemberState::joined) == (own != nullptr && own->state == MemberState::joined ? 1 : 0);
}

std::vector<std::string> Roster::awaited_by(const std::string& self, bool host) const {
  const bool all_serve = idle(self);
  std::vector<std::string> names;
  for (const auto& [name, member] : members_) {
    const bool busy = member->state == MemberState::joined || (host && member->serves()) ||
                      (all_serve && member->state == MemberState::serving);
    if (busy && name != self) names.push_back(name);
  }
  return names;
}

const MemberRecord* loss_between(const Roster::Records& before, const Roster::Records& after) {
  for (const auto& [name, was] : before) {
    const auto found = after.find(name);
    const MemberRecord* const now = found == after.end() ? nullptr : found->second.get();
    if (was != nullptr && !was->gone() && (now == nullptr || now->incarnation != was->incarnation))
      return was.get();
  }
  return nullptr;
}

std::vector<MemberEvent> events_between(const Roster::Records& before, const Roster::Records& after) {
  std::vector<MemberEvent> events;
  const auto ended = [&](const MemberRecord& was, const MemberRecord* now) {
    bool left = false;
    if (now != nullptr && now->incarnation == was.incarnation) {
      left = now->state == MemberState::left;
    } else if (now != nullptr && now->before && now->before->incarnation == was.incarnation) {
      left = now->before->left;
    }
    events.push_back({left ? MemberChange::left : MemberChange::lost, static_cast<const Member&>(was)});
  };
  const auto compare = [&](const MemberRecord* was, const MemberRecord* now) {
    const bool was_here = was != nullptr && was->here(), is_here = now != nullptr && now->here();
    const bool same = was != nullptr && now != nullptr && was->incarnation == now->incarnation;
    if (was_here && !(same && is_here)) ended(*was, now);
    if (is_here && !(same && was_here)) events.push_back({MemberChange::joined, *now});
  };
  auto old = before.begin();
  for (const auto& [name, now] : after) {
    for (; old != before.end() && old->first < name; ++old) compare(old->second.get(), nullptr);
    const bool known = old != before.end() && old->first == name;
    compare(known ? (old++)->second.get() : nullptr, now.get());
  }
  for (; old != before.end(); ++old) compare(old->second.get(), nullptr);
  return events;
}

}  // namespace weft::rpc
