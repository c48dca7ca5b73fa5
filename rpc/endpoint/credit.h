// Credit: flow control of one connection. The credit is the number of calls, and the number of bytes in these
// calls, that a peer accepts at a time.
//
// The peer's Hello grants credit. A request uses credit when it is sent; its reply returns the credit.
// Notifications have no reply: a separate frame returns their credit in batches. A request is sent as soon as
// some credit of both kinds is left. So one request may exceed the granted bytes, and no request waits
// forever. Pure arithmetic. Thread-safety: none.
#pragma once

#include <weft/rpc/wire/message.h>

#include <algorithm>
#include <optional>

namespace weft::rpc {

// The credit at the sender. Without a grant, the credit is unlimited.
class CreditWindow {
 public:
  // Sets the limits that the peer's hello states. 0: no limit.
  void grant(std::uint32_t max_calls, std::uint64_t max_bytes) {
    if (max_calls != 0) max_calls_ = max_calls;
    if (max_bytes != 0) max_bytes_ = max_bytes;
  }
  // Whether a request may be sent, whatever its size.
  bool has_room() const { return calls_ < max_calls_ && bytes_ < max_bytes_; }
  // A request of that size is sent.
  void use(std::uint64_t bytes) {
    ++calls_;
    bytes_ += bytes;
  }
  // Returns credit. If the peer returns more than is in use, the excess is ignored.
  void give_back(std::uint64_t calls, std::uint64_t bytes) {
    calls_ -= std::min(calls_, calls);
    bytes_ -= std::min(bytes_, bytes);
  }
  // The credit in use.
  std::uint64_t calls() const { return calls_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t max_calls_ = ~std::uint64_t{0}, max_bytes_ = ~std::uint64_t{0};
  std::uint64_t calls_ = 0, bytes_ = 0;
};

// The credit at the receiver, for notifications. The receiver keeps less than a quarter of the granted credit
// before it returns a batch, so the sender never waits forever.
class CreditReturns {
 public:
  CreditReturns(std::uint32_t max_calls, std::uint64_t max_bytes)
      : batch_{std::max<std::uint32_t>(max_calls / 4, 1), std::max<std::uint64_t>(max_bytes / 4, 1)} {}

  // A notification has ended. Returns the credit that the receiver must give back now; nullopt: none.
  std::optional<CreditInfo> ended(std::uint64_t bytes) {
    ++due_.calls;
    due_.bytes += bytes;
    if (due_.calls < batch_.calls && due_.bytes < batch_.bytes) return std::nullopt;
    return std::exchange(due_, {});
  }

 private:
  const CreditInfo batch_;
  CreditInfo due_;
};

}  // namespace weft::rpc
