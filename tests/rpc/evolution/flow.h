// The second recorded conversation, for features that archive.h does not use: lanes, credit, a cancellation,
// the items of a stream. It must not change.
#pragma once

#include <weft/rpc/rpc.h>
#include <weft/rpc/testing/wait.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace weft::rpc::recorded {

inline constexpr std::uint32_t flow_credit = 4;

class Flow {
 public:
  void note(std::string) { ++notes_; }
  std::uint64_t count() const { return notes_; }
  Future<void> hang(CallContext& call) {  // until it is cancelled
    auto promise = std::make_shared<Promise<void>>();
    call.on_cancel([promise] { promise->fail(Error(ErrorKind::cancelled, "given up")); });
    return promise->future();
  }
  Stream<std::int64_t> items(std::int64_t n) {
    auto [writer, stream] = make_channel<std::int64_t>(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) (void)writer.write(i * i - 1);
    writer.close();
    return std::move(stream);
  }

  // On the loop: one after the other.
  using Service =
      rpc::Service<"flow", Method<"note", &Flow::note, non_blocking>,
                   Method<"count", &Flow::count, non_blocking>, Method<"hang", &Flow::hang, non_blocking>,
                   Method<"items", &Flow::items, non_blocking>>;

 private:
  std::uint64_t notes_ = 0;
};

// Admits four calls at a time, so that the credit of each notification is returned in a separate frame.
inline AgentOptions flow_server() {
  AgentOptions options;
  options.name = "server";
  options.listen = {"tcp://127.0.0.1:0"};
  options.limits.calls = flow_credit;
  options.lanes = 1;
  options.same_host = false;
  return options;
}
inline AgentOptions flow_client() {
  AgentOptions options;
  options.name = "client";
  options.lanes = 1;
  options.same_host = false;
  return options;
}

struct FlowAnswers {
  std::uint64_t notes = 0;
  std::vector<std::int64_t> items;
};

// Makes the recorded calls. Their ids are: 1 Peer::ready(); 2 to 5 notifications that use up the credit; 6
// `count`; 7 `hang`; 8 `count`, before 7 is cancelled; 9 `items`; from 10 on the pulls of `items`.
inline FlowAnswers talk(const Peer& flow) {
  FlowAnswers answers;
  for (std::uint32_t i = 0; i < flow_credit; ++i) flow.notify<&Flow::note>("a line");
  answers.notes = test::got(flow.call<&Flow::count>());
  auto hangs = flow.call<&Flow::hang>();
  (void)test::got(flow.call<&Flow::count>());  // sent after it: `hang` has arrived
  hangs.cancel();
  auto stream = test::got(flow.call<&Flow::items>(3));
  while (const auto item = test::got(stream.next())) answers.items.push_back(*item);
  return answers;
}
inline constexpr std::uint64_t flow_counted = 6, flow_cancelled = 7;
inline const std::set<std::uint64_t> flow_calls{1, flow_counted, flow_cancelled, 8, 9};  // without pulls
inline const std::vector<std::int64_t> flow_items{-1, 0, 3};

}  // namespace weft::rpc::recorded
