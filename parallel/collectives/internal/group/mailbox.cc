#include <weft/parallel/collectives/internal/group/mailbox.h>

#include <weft/parallel/collectives/operation/internal/signature.h>

#include <algorithm>
#include <cstring>

namespace weft::collectives {

void Mailbox::deliver(Letter letter) {
  const auto wanted = std::find_if(receives_.begin(), receives_.end(),
                                   [&](const Receive& receive) { return match(receive, letter); });
  if (wanted == receives_.end()) return letters_.push_back(std::move(letter));
  Receive receive = std::move(*wanted);
  receives_.erase(wanted);
  hand_over(std::move(receive), std::move(letter));
}

void Mailbox::receive(Receive wanted) {
  const auto found = std::find_if(letters_.begin(), letters_.end(),
                                  [&](const Letter& letter) { return match(wanted, letter); });
  if (found == letters_.end()) return receives_.push_back(std::move(wanted));
  Letter letter = std::move(*found);
  letters_.erase(found);
  hand_over(std::move(wanted), std::move(letter));
}

bool Mailbox::fits(const Receive& wanted, const Letter& letter) {
  if (!wanted.type) return tensor_type_of(letter.type, letter.bytes.size()).has_value();
  const auto dtype = [](const std::string& type) { return std::string_view(type).substr(0, type.find('[')); };
  return (wanted.any_shape ? dtype(*wanted.type) == dtype(letter.type) : wanted.type == letter.type) &&
         wanted.size.value_or(letter.bytes.size()) == letter.bytes.size();
}

void Mailbox::hand_over(Receive wanted, Letter letter) {
  if (!fits(wanted, letter)) {
    const auto differ = std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::invalid_argument, "rank " + std::to_string(letter.from) + " sent " +
                                                         letter.type + " to " + receiver_ + ", whose " +
                                                         wanted.what + " expects another type or size"));
    letter.taken(differ);
    return wanted.done(differ);
  }
  Received received{letter.from, {}, std::move(letter.type)};
  if (!wanted.size) {
    received.bytes = letter.lent ? rpc::Buffer::copy(letter.bytes.bytes()) : std::move(letter.bytes);
  } else if (!letter.bytes.empty()) {
    std::memcpy(wanted.into, letter.bytes.data(), letter.bytes.size());
  }
  letter.taken(rpc::Result<void>{});
  wanted.done(std::move(received));
}

void Mailbox::fail(const rpc::Error& error) {
  const auto why = std::make_exception_ptr(error);
  for (Letter& letter : std::exchange(letters_, {})) letter.taken(why);
  for (Receive& receive : std::exchange(receives_, {})) receive.done(why);
}

bool Mailbox::awaits(int rank) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const Receive& receive) { return receive.from == rank; });
}

}  // namespace weft::collectives
