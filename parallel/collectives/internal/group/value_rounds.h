// ValueRounds: collects the values of all members of a group, on the member that gathers them.
//
// The nth values of all members form a round of values. When a round is complete, each member gets an answer:
// all values, by rank, or no values, if the member wants none. If the members called different operations,
// the answer is invalid_argument, which lists the operation of each member. A round of a launch has a name
// instead of a number, and its answer is the number of launches that were complete before it. All members
// start launches in the order of these numbers. Independent of transport and threads. Thread-safety: one call
// at a time; answers may call it again.
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/result.h>
#include <weft/rpc/core/unique_function.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::collectives {

// Identifies a round within its group.
struct RoundKey {
  std::uint64_t number = 0;  // of a round of values
  std::string launch = {};   // the name of a launch; empty: a round of values
  friend auto operator<=>(const RoundKey&, const RoundKey&) = default;
};

class WEFT_EXPORT ValueRounds {
 public:
  // By rank.
  using Values = std::vector<rpc::Buffer>;
  // One member's part in a round. site: of its call, for errors. wants_all: whether the answer has the values
  // of all members. deadline: for all members to arrive; only overdue() uses it. answer: called once.
  struct Value {
    std::string meaning;  // "all_gather_object(string)": equal on all members
    std::string site;
    rpc::Buffer bytes;
    bool wants_all = true;
    rpc::Clock::time_point deadline;
    rpc::UniqueFunction<void(rpc::Result<Values>)> answer;
  };
  // Receives the operation of each rank; returns the error for all ranks.
  using Difference = rpc::UniqueFunction<rpc::Error(const std::map<int, std::string>&)>;

  // ranks: of the group. difference: called for each round in which the operations differ.
  ValueRounds(int ranks, Difference difference) : ranks_(ranks), difference_(std::move(difference)) {}

  // The last member's value completes the round: all answers are called before this returns.
  void give(int from, const RoundKey& key, Value value);

  void fail(const rpc::Error& error);  // fails all rounds that wait

  std::optional<rpc::Clock::time_point> next_deadline() const;  // none: no round waits
  // For a round whose deadline has passed: the operation, and the members that have not arrived.
  struct Overdue {
    std::string what;
    std::vector<int> missing;
  };
  std::optional<Overdue> overdue(rpc::Clock::time_point now) const;

  bool awaits(int rank) const;  // some round has started without that rank

 private:
  using Round = std::map<int, Value>;  // by rank
  void end(const RoundKey& key, Round round);

  const int ranks_;
  Difference difference_;
  std::map<RoundKey, Round> rounds_;
  std::uint64_t launches_ = 0;  // the number of complete launches
};

}  // namespace weft::collectives
