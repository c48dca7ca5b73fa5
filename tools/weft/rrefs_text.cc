#include "tools/weft/rrefs_text.h"

#include <cstdio>
#include <map>

#include "tools/weft/bytes.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace {

std::string size_text(const std::optional<std::uint64_t>& bytes) {
  return bytes ? bytes_text(static_cast<double>(*bytes)) : "?";
}

// The users, each once, with the number of its forks: "anna bert*3".
std::string users_text(const std::vector<std::string>& users) {
  std::map<std::string, std::size_t> forks;
  for (const std::string& user : users) ++forks[user];
  std::string text;
  for (const auto& [user, count] : forks)
    text += (text.empty() ? "" : " ") + printable(user) + (count > 1 ? "*" + std::to_string(count) : "");
  return text.empty() ? "-" : text;
}

}  // namespace

std::string rrefs_text(const rref::ReferenceListing& listing) {
  const rref::ReferenceStats& stats = listing.stats;
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  std::string text = printable(listing.agent) + "  " + number(stats.objects) + " objects, " +
                     number(stats.creating) + " being created, " + number(stats.failed) + " failed; " +
                     number(stats.forks) + " forks elsewhere, " + number(stats.holds) + " holds here\n" +
                     "references  " + number(stats.references) + " to objects elsewhere, " +
                     number(stats.pending) + " not confirmed, " + number(stats.children) + " handed on\n";
  if (listing.objects.empty()) return text;
  text += "\n       AGE       SIZE  STATE     HOLDS  USERS  TYPE  ID  MADE AT\n";
  for (const rref::ObjectListing& object : listing.objects) {
    char columns[120];
    std::snprintf(columns, sizeof columns, "%10s %10s  %-8.20s %6s  ", text_of_seconds(object.age).c_str(),
                  size_text(object.bytes).c_str(), printable(object.state).c_str(),
                  number(object.holds).c_str());
    text += columns + users_text(object.users) + "  " + printable(object.type) + "  " + printable(object.id) +
            "  " + (object.site.empty() ? "-" : printable(object.site)) + "\n";
  }
  if (listing.more > 0) text += number(listing.more) + " more, younger ones\n";
  return text;
}

}  // namespace weft::tool
