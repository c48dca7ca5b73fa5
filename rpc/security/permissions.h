// Permissions: which peer may call which method. A list of rules; the first that fits decides.
//
//   rpc::Permissions::parse(R"(
//     allow  cert:trainer*   parameters.*
//     allow  *               weft.ping
//     deny   cert:intern*    *.delete      # what stands below is not asked any more
//     allow  cert:admin      *
//     default deny)")
//
// A rule is a line "allow IDENTITY METHOD" or "deny IDENTITY METHOD", its parts separated by blanks; # begins
// a comment. The last line may be "default allow" or "default deny"; without it what no rule names is denied.
// In both patterns * stands for any number of any characters, also none; everything else for itself, and
// capitals count. Identities are ByteStream::identity(): "cert:worker1", "psk:job7", "uid:1000", and "" for a
// peer that nothing proves, which only * fits. Methods are "service.method", weft's own "weft.methods" too.
//
// Immutable; thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// One rule: patterns, in which * stands for any characters.
struct PermissionRule {
  bool allow = false;
  std::string identity = "*", method = "*";
};

class WEFT_EXPORT Permissions {
 public:
  // Throws invalid_argument for a rule with an empty pattern.
  explicit Permissions(const std::vector<PermissionRule>& rules, bool otherwise = false);
  // Throws invalid_argument, with the number of the line.
  static Permissions parse(std::string_view text);

  // One pass over the rules, without an allocation: some ten nanoseconds a rule.
  bool allows(std::string_view identity, std::string_view method) const;

 private:
  // A pattern cut at its stars: what it begins with, what it ends with, and what lies between in this order.
  struct Glob {
    explicit Glob(std::string_view pattern);
    bool fits(std::string_view text) const;

    bool star = false;  // without one, `head` is all of it
    std::string head, tail;
    std::vector<std::string> middle;
  };
  struct Rule {
    bool allow;
    Glob identity, method;
  };

  std::vector<Rule> rules_;
  bool otherwise_;
};

}  // namespace weft::rpc
