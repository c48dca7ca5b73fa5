// The service and the calls of the first recorded conversation. Later versions replay the recording and must
// still understand it. It must not change. evolution_test.cc tests types that evolve.
#pragma once

#include <weft/rpc/rpc.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc::recorded {

struct Order {
  std::string symbol;
  double price = 0;
  std::vector<std::int64_t> sizes;
  std::optional<std::string> note;
  std::map<std::string, bool> flags;
};
WEFT_CODEC(Order, symbol, price, sizes, note, flags)

class Archive {
 public:
  std::int64_t add(Order order) {
    std::int64_t total = 0;
    for (const std::int64_t size : order.sizes) total += size;
    return total;
  }
  Order same(Order order) { return order; }
  Buffer turn(Buffer bytes) {
    Buffer turned = Buffer::allocate(bytes.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) turned.data()[i] = bytes.data()[bytes.size() - 1 - i];
    return turned;
  }
  void fail(std::string why) { throw Error(ErrorKind::failed_precondition, why); }
  void note(std::string line) { notes.push_back(std::move(line)); }
  std::uint64_t count() const { return notes.size(); }

  // On the loop, so that answers come in the order of the calls.
  using Service =
      rpc::Service<"archive", Method<"add", &Archive::add, non_blocking>,
                   Method<"same", &Archive::same, non_blocking>, Method<"turn", &Archive::turn, non_blocking>,
                   Method<"fail", &Archive::fail, non_blocking>, Method<"note", &Archive::note, non_blocking>,
                   Method<"count", &Archive::count, non_blocking>>;
  std::vector<std::string> notes;
};

inline Order order() {
  return {"ACME", 12.5, {1, 2, -3, std::int64_t{1} << 40}, "a note", {{"live", true}, {"old", false}}};
}
inline Buffer bytes() {
  Buffer bytes = Buffer::allocate(5000);  // large enough to travel as an attachment
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes.data()[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

struct Answers {
  Future<std::int64_t> add;
  Future<Order> same;
  Future<Buffer> turn;
  Future<void> fail;
  Future<std::uint64_t> count;
};

// The calls, in their order; their ids are 1 to 6.
inline Answers call_all(const Peer& archive) {
  auto add = archive.call<&Archive::add>(order());
  auto same = archive.call<&Archive::same>(order());
  auto turn = archive.with({.timeout = std::chrono::hours{1}}).call<&Archive::turn>(bytes());
  auto fail = archive.call<&Archive::fail>("no reason");
  archive.notify<&Archive::note>("a line");
  auto count = archive.call<&Archive::count>();
  return {std::move(add), std::move(same), std::move(turn), std::move(fail), std::move(count)};
}
inline constexpr std::size_t answers = 5;

}  // namespace weft::rpc::recorded
