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

}  // namespace

Permissions::Glob::Glob(std::string_view pattern) {
  const std::size_t first = pattern.find('*');
  head = pattern.substr(0, first);
  if (first == pattern.npos) return;
  star = true;
  const std::size_t last = pattern.rfind('*');
  tail = pattern.substr(last + 1);
  for (std::size_t begin = first + 1; begin <= last;) {
    const std::size_t end = pattern.find('*', begin);
    if (end > begin) middle.emplace_back(pattern.substr(begin, end - begin));
    begin = end + 1;
  }
}

// Each piece between stars is searched as early as possible, which leaves the most text for the rest. So no
// backtracking is needed, and the time is bounded by the lengths of the pattern and the text.
bool Permissions::Glob::fits(std::string_view text) const {
  if (!star) return text == head;
  if (text.size() < head.size() + tail.size() || !text.starts_with(head) || !text.ends_with(tail))
    return false;
  text.remove_prefix(head.size());
  text.remove_suffix(tail.size());
  for (const std::string& piece : middle) {
    const std::size_t place = text.find(piece);
    if (place == text.npos) return false;
    text.remove_prefix(place + piece.size());
  }
  return true;
}

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
    permissions.rules_.push_back({allow, Glob(words[1]), Glob(words[2])});
  }
  permissions.otherwise_ = otherwise.value_or(false);
  return permissions;
}

bool Permissions::allows(std::string_view identity, std::string_view method) const {
  for (const Rule& rule : rules_)
    if (rule.method.fits(method) && rule.identity.fits(identity)) return rule.allow;
  return otherwise_;
}

}  // namespace weft::rpc
