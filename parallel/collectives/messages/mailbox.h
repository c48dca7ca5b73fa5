// Mailbox: matches point-to-point messages with receives, for one member of a group.
//
// Messages of one sender and tag are received in the order of their arrival, by receives in the order of
// their calls. A receive from any rank takes the first message with its tag, and a receive without a type
// accepts any tensor. Both ranks learn the result: if the sent and the received tensor differ, both get
// invalid_argument, and no other rank is affected. Independent of transport and threads. Thread-safety: one
// call at a time; its callbacks may call it again.
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
  // A message that has arrived. taken: called once, when the receiver has the bytes, or with the error.
  struct Letter {
    int from;
    std::uint64_t tag;
    std::string type;  // "float32[4]"
    rpc::Buffer bytes;
    rpc::UniqueFunction<void(rpc::Result<void>)> taken;
    bool lent = false;  // the sender owns the bytes until taken()
  };
  // The result of a receive. bytes: empty if the receive has a destination.
  struct Received {
    int from;  // the sender's rank
    rpc::Buffer bytes;
    std::string type;
  };
  // A receive. done: called once, with the message or the error. deadline: only overdue() uses it.
  struct Receive {
    std::optional<int> from;  // none: any rank
    std::uint64_t tag;
    std::optional<std::string> type;  // none: any tensor
    std::byte* into;                  // memory of `size` bytes, until `done` is called
    std::optional<std::size_t> size;  // in bytes; none: the message is returned, not copied to a destination
    std::string what;                 // for errors: "recv(float32[4], from 1) at train.cc:3"
    rpc::Clock::time_point deadline;
    rpc::UniqueFunction<void(rpc::Result<Received>)> done;
  };

  explicit Mailbox(std::string receiver)
      : receiver_(std::move(receiver)) {}  // for errors: "rank 2 (worker2)"

  // Match at once, or are kept. If they match, `taken` and `done` are called before these return.
  void deliver(Letter letter);
  void receive(Receive wanted);

  void fail(const rpc::Error& error);  // all waits, on either side

  bool awaits(int rank) const;                                  // only this rank can complete a receive
  const Receive* overdue(rpc::Clock::time_point now) const;     // one whose deadline has passed; null: none
  std::optional<rpc::Clock::time_point> next_deadline() const;  // none: no receive has one

 private:
  static bool match(const Receive& wanted, const Letter& letter) {
    return wanted.tag == letter.tag && wanted.from.value_or(letter.from) == letter.from;
  }
  static bool fits(const Receive& wanted, const Letter& letter);
  void hand_over(Receive wanted, Letter letter);

  const std::string receiver_;
  std::list<Letter> letters_;    // for which there is no receive yet
  std::list<Receive> receives_;  // for which no message has arrived yet
};

}  // namespace weft::collectives
