// Permissions: a list of rules that determines which peers may call which methods. The first rule that
// matches decides.
//
//   rpc::Permissions::parse(R"(
//     allow  cert:trainer*   parameters.*
//     allow  *               weft.ping
//     deny   cert:intern*    *.delete      # if this matches, later rules are ignored
//     allow  cert:admin      *
//     default deny)")
//
// A rule is a line "allow IDENTITY METHOD" or "deny IDENTITY METHOD". Blanks separate the words, and # begins
// a comment. The last line may be "default allow" or "default deny"; without it, the default is deny. In both
// patterns, * matches any number of characters, including none; all other characters match themselves,
// case-sensitively. Identities are ByteStream::identity(): "cert:worker1", "psk:job7", "uid:1000", or "" for
// a peer without a proven identity, which only * matches. Methods are "service.method", including weft's own
// such as "weft.methods".
//
// Immutable; thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

class WEFT_EXPORT Permissions {
 public:
  // Throws invalid_argument, with the line number, if the text is malformed.
  static Permissions parse(std::string_view text);

  // Whether this identity may call this method. Checks the rules in order, without allocation, in about 10 ns
  // per rule.
  bool allows(std::string_view identity, std::string_view method) const;

 private:
  struct Rule {
    bool allow;
    std::string identity, method;  // patterns
  };

  Permissions() = default;

  std::vector<Rule> rules_;
  bool otherwise_ = false;
};

}  // namespace weft::rpc
