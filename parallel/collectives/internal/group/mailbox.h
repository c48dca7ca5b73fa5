// Mailbox: matches point-to-point messages with receives, for one member of a group.
//
// Messages of one sender and tag are matched in the order of their arrival, with receives in the order of
// their calls. A receive from any rank gets the first message with its tag. A receive without a type accepts
// any tensor. If the tensor that is sent and the tensor that is expected differ, the send and the receive
// both fail with invalid_argument; no other rank is affected. The mailbox is independent of transport and
// threads. Thread-safety: one call at a time; its callbacks may call it again.
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
  // A message that has arrived. taken: called once, without an error when the receiver has the bytes,
  // otherwise with the error.
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
  // A receive. done: called once, with the message or the error. deadline: of the owner;
  // the mailbox itself does not fail the receive.
  struct Receive {
    std::optional<int> from;  // nullopt: any rank
    std::uint64_t tag;
    std::optional<std::string> type;  // nullopt: any tensor
    bool any_shape;                   // whether a tensor of the same dtype and size may have another shape
    std::byte* into;                  // the destination of `size` bytes, valid until `done` is called
    std::optional<std::size_t> size;  // nullopt: `done` gets the bytes, and `into` is not used
    std::string what;                 // for errors: "recv(float32[4], from 1) at train.cc:3"
    rpc::Clock::time_point deadline;
    rpc::UniqueFunction<void(rpc::Result<Received>)> done;
  };

  explicit Mailbox(std::string receiver)
      : receiver_(std::move(receiver)) {}  // for errors: "rank 2 (worker2)"

  // Match a message or a receive with an earlier counterpart, or keep it until its counterpart arrives. If
  // they match, `taken` and `done` are called before deliver() or receive() returns.
  void deliver(Letter letter);
  void receive(Receive wanted);

  void fail(const rpc::Error& error);  // fails all kept messages and receives

  bool awaits(int rank) const;  // whether a receive waits for this rank alone
  const std::list<Receive>& receives() const { return receives_; }  // that no message has matched yet

 private:
  static bool match(const Receive& wanted, const Letter& letter) {
    return wanted.tag == letter.tag && wanted.from.value_or(letter.from) == letter.from;
  }
  static bool fits(const Receive& wanted, const Letter& letter);
  void hand_over(Receive wanted, Letter letter);

  const std::string receiver_;
  std::list<Letter> letters_;  // that no receive has matched yet
  std::list<Receive> receives_;
};

}  // namespace weft::collectives
