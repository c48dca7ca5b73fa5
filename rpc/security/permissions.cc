#include <weft/rpc/security/permissions.h>

#include <weft/rpc/core/error.h>

#include <optional>

namespace weft::rpc {
namespace {

constexpr std::string_view blanks = " \t\r";

// The words of a line, without its comment.
std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t begin = line.find_first_not_of(blanks);
    if (begin == line.npos) return words;
    const std::size_t end = std::min(line.find_first_of(blanks, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    line.remove_prefix(end);
  }
}

// A part of the text that a * matches grows only up to the next *: the earliest place for the characters
// between two stars leaves the most text for the rest. So the time is bounded by the product of the lengths.
bool fits(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  std::size_t star = pattern.npos, resume = 0;  // the latest *, and where the text after its part begins
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p, ++t;
    } else if (star != pattern.npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == pattern.npos;
}

}  // namespace

Permissions Permissions::parse(std::string_view text) {
  Permissions permissions;
  std::optional<bool> otherwise;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const auto words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty()) continue;

    const std::string line(words.front().data(), words.back().data() + words.back().size());
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorKind::invalid_argument, "permissions, line " + std::to_string(number) + ": " + why);
    };
    const auto verdict = [&](std::string_view word) {
      if (word != "allow" && word != "deny")
        refuse("found '" + std::string(word) + "', expected allow or deny");
      return word == "allow";
    };
    if (otherwise) refuse("found a rule after the default, expected the default last");
    if (words[0] == "default") {
      if (words.size() != 2) refuse("found '" + line + "', expected 'default allow' or 'default deny'");
      otherwise = verdict(words[1]);
      continue;
    }
    const bool allow = verdict(words[0]);
    if (words.size() != 3)
      refuse("found '" + line + "', expected 'allow IDENTITY METHOD' or 'deny IDENTITY METHOD'");
    permissions.rules_.push_back({allow, std::string(words[1]), std::string(words[2])});
  }
  permissions.otherwise_ = otherwise.value_or(false);
  return permissions;
}

bool Permissions::allows(std::string_view identity, std::string_view method) const {
  for (const Rule& rule : rules_)
    if (fits(rule.method, method) && fits(rule.identity, identity)) return rule.allow;
  return otherwise_;
}

}  // namespace weft::rpc
