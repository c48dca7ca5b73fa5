// Mailbox: which point-to-point message is for which receive, of one member of a group.
//
// Messages of one sender and tag are taken in the order in which they came, by receives in the order in which
// they were asked for; a receive from anybody takes the first to come of its tag, and one without a type any
// tensor. Both ends learn how it went: where what was sent is not what is received, both get
// invalid_argument, and nobody else is concerned.
// Pure of transport and threads. Thread-safety: one call at a time; what it tells may call it again.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <list>
#include <optional>
#include <string>

namespace weft::collectives {

class WEFT_EXPORT Mailbox {
 public:
  struct Letter {
    int from;
    std::uint64_t tag;
    std::string type;  // "float32[4]"
    rpc::Buffer bytes;
    rpc::UniqueFunction<void(rpc::Result<void>)> taken;
    bool lent = false;  // the bytes are the sender's own until taken()
  };
  struct Received {
    int from;  // the sender's rank
    rpc::Buffer bytes;
    std::string type;
  };
  struct Receive {
    std::optional<int> from;  // none: anybody
    std::uint64_t tag;
    std::optional<std::string> type;  // none: any tensor's
    std::byte* into;
    std::optional<std::size_t> size;  // in bytes; none: what comes is given, not put anywhere
    std::string what;                 // for errors: "recv(float32[4], from 1) at train.cc:3"
    rpc::Clock::time_point deadline;
    rpc::UniqueFunction<void(rpc::Result<Received>)> done;
  };

  explicit Mailbox(std::string receiver)
      : receiver_(std::move(receiver)) {}  // for errors: "rank 2 (worker2)"

  void deliver(Letter letter);
  void receive(Receive wanted);
  void fail(const rpc::Error& error);  // all that wait, on either side

  bool awaits(int rank) const;                                  // a receive can only be ended by this rank
  const Receive* overdue(rpc::Clock::time_point now) const;     // one whose deadline has passed; null: none
  std::optional<rpc::Clock::time_point> next_deadline() const;  // none: no receive has one

 private:
  static bool match(const Receive& wanted, const Letter& letter) {
    return wanted.tag == letter.tag && wanted.from.value_or(letter.from) == letter.from;
  }
  static bool fits(const Receive& wanted, const Letter& letter);
  void hand_over(Receive wanted, Letter letter);

  const std::string receiver_;
  std::list<Letter> letters_;    // that nobody asked for yet
  std::list<Receive> receives_;  // that nothing came for yet
};

}  // namespace weft::collectives
