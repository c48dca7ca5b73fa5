#include "tools/weft/launch/elastic/blacklist.h"

#include <weft/rpc/core/split_mix.h>

#include <algorithm>

namespace weft::tool::launch::elastic {

Blacklist::Blacklist(BlacklistOptions options, std::uint64_t seed) : options_(options), state_{seed, {}} {}

bool Blacklist::fail(const std::string& name, Time now, std::chrono::nanoseconds healthy) {
  BlacklistEntry& host = state_.hosts[name];
  if (healthy >= options_.healthy_after) host.failures = host.times = 0;
  if (host.blacklisted || ++host.failures < options_.failures) return false;
  host.blacklisted = true;
  host.until.reset();
  if (options_.cooldown > options_.cooldown.zero()) host.until = now + cooldown_of(host.times++);
  return true;
}

std::vector<std::string> Blacklist::release(Time now) {
  std::vector<std::string> released;
  for (auto& [name, host] : state_.hosts) {
    if (!host.blacklisted || !host.until || *host.until > now) continue;
    host.blacklisted = false;
    host.failures = options_.failures - 1;
    released.push_back(name);
  }
  return released;
}

bool Blacklist::holds(const std::string& host) const {
  const auto found = state_.hosts.find(host);
  return found != state_.hosts.end() && found->second.blacklisted;
}

std::optional<Blacklist::Time> Blacklist::until(const std::string& host) const {
  const auto found = state_.hosts.find(host);
  return found == state_.hosts.end() ? std::nullopt : found->second.until;
}

std::optional<Blacklist::Time> Blacklist::next_release() const {
  std::optional<Time> next;
  for (const auto& [name, host] : state_.hosts)
    if (host.blacklisted && host.until && (!next || *host.until < *next)) next = host.until;
  return next;
}

// The cooldown has a random part, so that hosts that failed together return one after another, unless the
// cooldown is at its maximum.
std::chrono::nanoseconds Blacklist::cooldown_of(std::uint32_t times) {
  const std::chrono::nanoseconds most = std::max(options_.cooldown, options_.max_cooldown);
  std::chrono::nanoseconds cooldown = options_.cooldown;
  for (; times != 0 && cooldown < most; --times) cooldown = cooldown > most / 2 ? most : 2 * cooldown;
  const std::uint64_t jitter = draw() % static_cast<std::uint64_t>(options_.cooldown.count());
  return std::min(most, cooldown + std::chrono::nanoseconds(jitter));
}

std::uint64_t Blacklist::draw() { return rpc::split_mix(state_.random += rpc::split_mix_step); }

}  // namespace weft::tool::launch::elastic
