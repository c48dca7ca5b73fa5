#include <weft/parallel/collectives/flight/flight_verdict.h>

#include <gtest/gtest.h>

#include "tests/parallel/collectives/flight/flight_job.h"

namespace weft::collectives::testing {
namespace flight_verdict_test {

using Kind = FlightFinding::Kind;
using State = FlightState;

constexpr auto sum = "all_reduce(sum, float32[4])";
constexpr auto gather = "all_gather(float32[4])";

std::vector<FlightDump> joined(const std::vector<std::vector<FlightDump>>& parts) {
  std::vector<FlightDump> dumps;
  for (const auto& part : parts) dumps.insert(dumps.end(), part.begin(), part.end());
  return dumps;
}

struct Expected {
  Kind kind;
  std::optional<std::uint64_t> sequence;
  std::vector<int> ranks;
};

struct Case {
  const char* name;
  std::vector<FlightDump> (*dumps)();
  std::vector<Expected> findings;
  const char* text;
};

const Case cases[] = {
    {"all_well",
     [] {
       FlightJob job(4);
       for (int i = 0; i < 3; ++i) job.all_do(sum, "a.cc:1");
       job.message(0, FlightKind::send, 1, "float32[4]", "a.cc:2", State::done);
       job.message(1, FlightKind::recv, 0, "float32[4]", "a.cc:3", State::done);
       return job.dumps();
     },
     {},
     "group 'world': 4 ranks; 3 collectives begun\n"
     "  all ranks called the same operations, and none is in flight\n"},
    {"begins_no_more",
     [] {
       FlightJob job(4);
       job.all_do("barrier()", "a.cc:1");
       job.all_do(sum, "a.cc:2", State::begun, {2});
       job.dump(0).error = "group 'world': it took too long";
       job.dump(1).error = "group 'world': it took too long";
       return job.dumps();
     },
     {{Kind::missing, 1, {2}}},
     "group 'world': 4 ranks; 1 to 2 collectives begun\n"
     "  ended with: group 'world': it took too long\n"
     "  #1 all_reduce(sum, float32[4]): rank 2 (worker2) has not begun it\n"
     "    ranks 0, 1, 3: in #1 all_reduce(sum, float32[4]) at a.cc:2, for 98.0 s\n"
     "    rank 2 (worker2): done with #0 barrier() at a.cc:1 and in no other operation, for 98.8 s\n"},
    {"has_begun_nothing",
     [] {
       FlightJob job(2);
       job.does(0, sum, "a.cc:2", State::begun);
       return job.dumps();
     },
     {{Kind::missing, 0, {1}}},
     "group 'world': 2 ranks; 0 to 1 collectives begun\n"
     "  #0 all_reduce(sum, float32[4]): rank 1 (worker1) has not begun it\n"
     "    rank 0 (worker0): in #0 all_reduce(sum, float32[4]) at a.cc:2, for 99.0 s\n"
     "    rank 1 (worker1): has begun no operation\n"},
    // All collectives have the same signature. They differ only in the line of their call.
    {"left_out_one_of_many",
     [] {
       FlightJob job(3);
       for (int i = 0; i < 4; ++i) {
         job.all_do(sum, "a.cc:1");
         job.all_do(sum, "a.cc:2", State::done, i == 1 ? std::vector{1} : std::vector<int>{});
       }
       for (const int rank : {0, 2}) job.last(rank).state = State::begun;
       return job.dumps();
     },
     {{Kind::missing, 7, {1}}},
     "group 'world': 3 ranks; 7 to 8 collectives begun\n"
     "  #7 all_reduce(sum, float32[4]): rank 1 (worker1) has not begun it\n"
     "    ranks 0, 2: in #7 all_reduce(sum, float32[4]) at a.cc:2, for 92.0 s\n"
     "    rank 1 (worker1): done with #6 all_reduce(sum, float32[4]) at a.cc:2 and in no other operation, "
     "for 92.8 s\n"
     "    #3: by the places in the program, rank 1 (worker1) seems to have left out "
     "all_reduce(sum, float32[4]) at a.cc:2\n"},
    {"left_out_another",
     [] {
       FlightJob job(3);
       job.all_do("barrier()", "a.cc:1");
       job.all_do(sum, "a.cc:2", State::failed, {1});
       job.all_do(gather, "a.cc:3", State::failed);
       job.all_do("barrier()", "a.cc:4", State::begun);
       return job.dumps();
     },
     {{Kind::mismatch, 1, {1}}, {Kind::missing, 3, {1}}},
     "group 'world': 3 ranks; 3 to 4 collectives begun\n"
     "  #1: the ranks call different operations\n"
     "    ranks 0, 2: all_reduce(sum, float32[4]) at a.cc:2\n"
     "    rank 1 (worker1): all_gather(float32[4]) at a.cc:3\n"
     "    rank 1 (worker1) seems to have left out all_reduce(sum, float32[4]) at a.cc:2\n"
     "    and 1 later one differs\n"
     "  #3 barrier(): rank 1 (worker1) has not begun it\n"
     "    ranks 0, 2: in #3 barrier() at a.cc:4, for 96.0 s\n"
     "    rank 1 (worker1): in #2 barrier() at a.cc:4\n"},
    {"does_one_more",
     [] {
       FlightJob job(3);
       job.does(1, gather, "a.cc:9", State::begun);
       job.all_do(sum, "a.cc:2", State::begun);
       return job.dumps();
     },
     {{Kind::mismatch, 0, {1}}, {Kind::missing, 1, {0, 2}}},
     "group 'world': 3 ranks; 1 to 2 collectives begun\n"
     "  #0: the ranks call different operations\n"
     "    ranks 0, 2: all_reduce(sum, float32[4]) at a.cc:2\n"
     "    rank 1 (worker1): all_gather(float32[4]) at a.cc:9\n"
     "    rank 1 (worker1) seems to have called one more, all_gather(float32[4]) at a.cc:9\n"
     "  #1 all_reduce(sum, float32[4]): ranks 0, 2 have not begun it\n"
     "    ranks 0, 2: in #0 all_reduce(sum, float32[4]) at a.cc:2\n"
     "    rank 1 (worker1): in #1 all_reduce(sum, float32[4]) at a.cc:2, for 98.0 s\n"},
    {"swapped",
     [] {
       FlightJob job(4);
       for (const int rank : {0, 1, 2}) job.does(rank, sum, "a.cc:1", State::failed);
       for (const int rank : {0, 1, 2}) job.does(rank, gather, "a.cc:2", State::failed);
       job.does(3, gather, "a.cc:12", State::failed);
       job.does(3, sum, "a.cc:11", State::failed);
       return job.dumps();
     },
     {{Kind::mismatch, 0, {3}}},
     "group 'world': 4 ranks; 2 collectives begun\n"
     "  #0: the ranks call different operations\n"
     "    ranks 0-2: all_reduce(sum, float32[4]) at a.cc:1\n"
     "    rank 3 (worker3): all_gather(float32[4]) at a.cc:12\n"
     "    rank 3 (worker3) seems to have called all_reduce(sum, float32[4]) at a.cc:1 and "
     "all_gather(float32[4]) at a.cc:2 in the other order\n"
     "    and 1 later one differs\n"},
    {"other_shapes",
     [] {
       FlightJob job(4);
       job.all_do(sum, "a.cc:1");
       for (const int rank : {0, 1}) job.does(rank, "all_reduce(sum, float32[5])", "a.cc:2", State::failed);
       for (const int rank : {2, 3}) job.does(rank, sum, "a.cc:2", State::failed);
       return job.dumps();
     },
     {{Kind::mismatch, 1, {2, 3}}},
     "group 'world': 4 ranks; 2 collectives begun\n"
     "  #1: the ranks call different operations\n"
     "    ranks 0, 1: all_reduce(sum, float32[5]) at a.cc:2\n"
     "    ranks 2, 3: all_reduce(sum, float32[4]) at a.cc:2\n"},
    // The ranks that differ wait until all ranks have announced their collective.
    {"other_shapes_and_one_missing",
     [] {
       FlightJob job(3);
       job.all_do("barrier()", "a.cc:1");
       job.does(0, sum, "a.cc:2", State::begun);
       job.does(1, gather, "a.cc:3", State::begun);
       return job.dumps();
     },
     {{Kind::mismatch, 1, {1}}},
     "group 'world': 3 ranks; 1 to 2 collectives begun\n"
     "  #1: the ranks call different operations\n"
     "    rank 0 (worker0): all_reduce(sum, float32[4]) at a.cc:2\n"
     "    rank 1 (worker1): all_gather(float32[4]) at a.cc:3\n"
     "    rank 2 (worker2): has not begun it\n"},
    {"dead",
     [] {
       FlightJob job(4);
       job.all_do(sum, "a.cc:1");
       job.all_do(sum, "a.cc:2", State::moving, {3});
       return job.dumps({3});
     },
     {{Kind::no_dump, 1, {3}}},
     "group 'world': 4 ranks, dumps of 3; 2 collectives begun\n"
     "  rank 3 (worker3) has left no dump: dead, perhaps, or stopped before it could be written\n"
     "    ranks 0-2: in #1 all_reduce(sum, float32[4]) at a.cc:2, for 98.0 s\n"},
    {"dead_while_others_are_done",
     [] {
       FlightJob job(3);
       job.all_do(sum, "a.cc:1");
       return job.dumps({0, 2});
     },
     {{Kind::no_dump, std::nullopt, {0, 2}}},
     "group 'world': 3 ranks, dumps of 1; 1 collective begun\n"
     "  ranks 0, 2 have left no dump: dead, perhaps, or stopped before it could be written\n"},
    // All ranks have started the collective, but it makes no progress.
    {"stalled",
     [] {
       FlightJob job(3);
       job.all_do(sum, "a.cc:1", State::moving);
       job.last(0).waits_for = {2};
       job.last(1).waits_for = {0, 2};
       job.last(2).state = State::done;
       return job.dumps();
     },
     {{Kind::in_progress, 0, {0, 1}}},
     "group 'world': 3 ranks; 1 collective begun\n"
     "  #0 all_reduce(sum, float32[4]): all ranks have begun it, ranks 0, 1 are not done\n"
     "    rank 0 (worker0): in it at a.cc:1, data moves, waits for rank 2 (worker2), for 99.0 s\n"
     "    rank 1 (worker1): in it at a.cc:1, data moves, waits for ranks 0, 2, for 99.0 s\n"
     "    rank 2 (worker2): done\n"},
    // No rank hangs: one rank is late every time.
    {"slow",
     [] {
       FlightJob job(3);
       for (int i = 0; i < 10; ++i) {
         job.all_do(sum, "a.cc:1");
         job.last(i < 9 ? 2 : 0).begun += second / 4;
       }
       return job.dumps();
     },
     {},
     "group 'world': 3 ranks; 10 collectives begun\n"
     "  all ranks called the same operations, and none is in flight\n"
     "  rank 2 (worker2) was the last rank to begin 9 of 10 collectives, in half of them by 250.0 ms or more "
     "(by the "
     "hosts' clocks)\n"},
    {"late_by_turns",
     [] {
       FlightJob job(2);
       for (int i = 0; i < 20; ++i) {
         job.all_do(sum, "a.cc:1");
         job.last(i % 2).begun += second / 4;
       }
       return job.dumps();
     },
     {},
     "group 'world': 2 ranks; 20 collectives begun\n"
     "  all ranks called the same operations, and none is in flight\n"},
    {"recv_without_send",
     [] {
       FlightJob job(3);
       job.all_do(sum, "a.cc:1");
       job.message(1, FlightKind::recv, 0, "float32[4]", "a.cc:2", State::begun);
       return job.dumps();
     },
     {{Kind::unsent, std::nullopt, {1, 0}}},
     "group 'world': 3 ranks; 1 collective begun\n"
     "  recv(float32[4], from 0) at a.cc:2 of rank 1 (worker1): rank 0 (worker0) has not sent it\n"
     "    rank 0 (worker0): done with #0 all_reduce(sum, float32[4]) at a.cc:1 and in no other operation, "
     "for 98.8 "
     "s\n"},
    {"recv_from_any",
     [] {
       FlightJob job(2);
       job.message(1, FlightKind::recv, -1, "float32[4]", "a.cc:2", State::begun);
       return job.dumps();
     },
     {{Kind::unsent, std::nullopt, {1}}},
     "group 'world': 2 ranks; 0 collectives begun\n"
     "  recv(float32[4], from any) at a.cc:2 of rank 1 (worker1): no rank has sent it\n"},
    {"another_tag",
     [] {
       FlightJob job(2);
       job.message(0, FlightKind::send, 1, "float32[4]", "a.cc:1", State::begun, 5);
       job.message(1, FlightKind::recv, 0, "float32[4]", "a.cc:2", State::begun, 6);
       return job.dumps();
     },
     {{Kind::cycle, std::nullopt, {}},
      {Kind::unreceived, std::nullopt, {0, 1}},
      {Kind::unsent, std::nullopt, {1, 0}}},
     "cycle of 2 waits: a deadlock, if each member waits for one operation before it begins the next\n"
     "  worker0 is in send(float32[4], to 1, tag 5) at a.cc:1 of group 'world', which waits for worker1\n"
     "  worker1 is in recv(float32[4], from 0, tag 6) at a.cc:2 of group 'world', which waits for worker0\n"
     "group 'world': 2 ranks; 0 collectives begun\n"
     "  send(float32[4], to 1, tag 5) at a.cc:1 of rank 0 (worker0): rank 1 (worker1) does not receive it\n"
     "    rank 1 (worker1): in recv(float32[4], from 0, tag 6) at a.cc:2, for 99.0 s\n"
     "  recv(float32[4], from 0, tag 6) at a.cc:2 of rank 1 (worker1): rank 0 (worker0) has not sent it\n"
     "    rank 0 (worker0): in send(float32[4], to 1, tag 5) at a.cc:1, for 99.0 s\n"},
    {"unlike_messages",
     [] {
       FlightJob job(2);
       job.message(0, FlightKind::send, 1, "float32[4]", "a.cc:1", State::failed);
       job.message(1, FlightKind::recv, -1, "float32[5]", "a.cc:2", State::failed);
       return job.dumps();
     },
     {{Kind::unlike, std::nullopt, {0, 1}}},
     "group 'world': 2 ranks; 0 collectives begun\n"
     "  send(float32[4], to 1) of rank 0 (worker0) and its receive have different tensors or objects\n"
     "    rank 0 (worker0): send(float32[4], to 1) at a.cc:1\n"
     "    rank 1 (worker1): recv(float32[5], from any) at a.cc:2\n"},
    // Each receive matches its send.
    {"in_transit",
     [] {
       FlightJob job(3);
       job.message(0, FlightKind::send, 1, "float32[4]", "a.cc:1", State::begun);
       job.message(0, FlightKind::send, 1, "float32[5]", "a.cc:2", State::begun, 3);
       job.message(1, FlightKind::recv, 2, "float32[9]", "a.cc:3", State::done);
       job.message(1, FlightKind::recv, 0, "float32[4]", "a.cc:3", State::begun);
       job.message(1, FlightKind::recv, -1, "float32[5]", "a.cc:4", State::begun, 3);
       return job.dumps();
     },
     {{Kind::in_transit, std::nullopt, {0, 1}}, {Kind::in_transit, std::nullopt, {0, 1}}},
     "group 'world': 3 ranks; 0 collectives begun\n"
     "  send(float32[4], to 1) of rank 0 (worker0) and its receive are both in flight\n"
     "    rank 0 (worker0): send(float32[4], to 1) at a.cc:1\n"
     "    rank 1 (worker1): recv(float32[4], from 0) at a.cc:3\n"
     "  send(float32[5], to 1, tag 3) of rank 0 (worker0) and its receive are both in flight\n"
     "    rank 0 (worker0): send(float32[5], to 1, tag 3) at a.cc:2\n"
     "    rank 1 (worker1): recv(float32[5], from any, tag 3) at a.cc:4\n"},
    {"recv_of_another",
     [] {
       FlightJob job(3);
       job.message(0, FlightKind::send, 1, "float32[4]", "a.cc:1", State::begun);
       job.message(1, FlightKind::recv, 2, "float32[4]", "a.cc:2", State::begun);
       return job.dumps();
     },
     {{Kind::unreceived, std::nullopt, {0, 1}}, {Kind::unsent, std::nullopt, {1, 2}}},
     "group 'world': 3 ranks; 0 collectives begun\n"
     "  send(float32[4], to 1) at a.cc:1 of rank 0 (worker0): rank 1 (worker1) does not receive it\n"
     "    rank 1 (worker1): in recv(float32[4], from 2) at a.cc:2, for 99.0 s\n"
     "  recv(float32[4], from 2) at a.cc:2 of rank 1 (worker1): rank 2 (worker2) has not sent it\n"
     "    rank 2 (worker2): has begun no operation\n"},
    {"both_receive_first",
     [] {
       FlightJob job(2);
       job.message(0, FlightKind::recv, 1, "float32[4]", "a.cc:1", State::begun);
       job.message(1, FlightKind::recv, 0, "float32[4]", "a.cc:2", State::begun);
       return job.dumps();
     },
     {{Kind::cycle, std::nullopt, {}},
      {Kind::unsent, std::nullopt, {0, 1}},
      {Kind::unsent, std::nullopt, {1, 0}}},
     "cycle of 2 waits: a deadlock, if each member waits for one operation before it begins the next\n"
     "  worker0 is in recv(float32[4], from 1) at a.cc:1 of group 'world', which waits for worker1\n"
     "  worker1 is in recv(float32[4], from 0) at a.cc:2 of group 'world', which waits for worker0\n"
     "group 'world': 2 ranks; 0 collectives begun\n"
     "  recv(float32[4], from 1) at a.cc:1 of rank 0 (worker0): rank 1 (worker1) has not sent it\n"
     "    rank 1 (worker1): in recv(float32[4], from 0) at a.cc:2, for 99.0 s\n"
     "  recv(float32[4], from 0) at a.cc:2 of rank 1 (worker1): rank 0 (worker0) has not sent it\n"
     "    rank 0 (worker0): in recv(float32[4], from 1) at a.cc:1, for 99.0 s\n"},
    {"one_receives_where_all_gather",
     [] {
       FlightJob job(3);
       job.all_do(gather, "a.cc:1", State::begun, {1});
       job.message(1, FlightKind::recv, 0, "float32[4]", "a.cc:2", State::begun);
       return job.dumps();
     },
     {{Kind::cycle, std::nullopt, {}}, {Kind::missing, 0, {1}}, {Kind::unsent, std::nullopt, {1, 0}}},
     "cycle of 2 waits: a deadlock, if each member waits for one operation before it begins the next\n"
     "  worker0 is in #0 all_gather(float32[4]) at a.cc:1 of group 'world', which waits for worker1\n"
     "  worker1 is in recv(float32[4], from 0) at a.cc:2 of group 'world', which waits for worker0\n"
     "group 'world': 3 ranks; 0 to 1 collectives begun\n"
     "  #0 all_gather(float32[4]): rank 1 (worker1) has not begun it\n"
     "    ranks 0, 2: in #0 all_gather(float32[4]) at a.cc:1, for 99.0 s\n"
     "    rank 1 (worker1): in recv(float32[4], from 0) at a.cc:2, for 99.0 s\n"
     "  recv(float32[4], from 0) at a.cc:2 of rank 1 (worker1): rank 0 (worker0) has not sent it\n"
     "    rank 0 (worker0): in #0 all_gather(float32[4]) at a.cc:1, for 99.0 s\n"},
    // Group A waits for worker 2, which is in a collective of B. Group B waits for worker 0, which is in a
    // collective of A.
    {"group_within_group",
     [] {
       FlightJob a(3, "A"), b(2, "B", {2, 0});
       a.all_do("barrier()", "a.cc:1");
       a.all_do(sum, "a.cc:2", State::begun, {2});
       b.does(0, gather, "b.cc:7", State::begun);
       return joined({a.dumps(), b.dumps()});
     },
     {{Kind::cycle, std::nullopt, {}}, {Kind::missing, 1, {2}}, {Kind::missing, 0, {1}}},
     "cycle of 2 waits: a deadlock, if each member waits for one operation before it begins the next\n"
     "  worker0 is in #1 all_reduce(sum, float32[4]) at a.cc:2 of group 'A', which waits for worker2\n"
     "  worker2 is in #0 all_gather(float32[4]) at b.cc:7 of group 'B', which waits for worker0\n"
     "group 'A': 3 ranks; 1 to 2 collectives begun\n"
     "  #1 all_reduce(sum, float32[4]): rank 2 (worker2) has not begun it\n"
     "    ranks 0, 1: in #1 all_reduce(sum, float32[4]) at a.cc:2, for 98.0 s\n"
     "    rank 2 (worker2): in #0 all_gather(float32[4]) at b.cc:7 of group 'B', for 99.0 s\n"
     "group 'B': 2 ranks; 0 to 1 collectives begun\n"
     "  #0 all_gather(float32[4]): rank 1 (worker0) has not begun it\n"
     "    rank 0 (worker2): in #0 all_gather(float32[4]) at b.cc:7, for 99.0 s\n"
     "    rank 1 (worker0): in #1 all_reduce(sum, float32[4]) at a.cc:2 of group 'A', for 98.0 s\n"},
    // The same, but B is only slow: the rank for which it waits is in no operation.
    {"group_after_group",
     [] {
       FlightJob a(2, "A"), b(2, "B", {1, 5});
       a.does(0, sum, "a.cc:2", State::begun);
       b.does(0, gather, "b.cc:7", State::begun);
       return joined({a.dumps(), b.dumps()});
     },
     {{Kind::missing, 0, {1}}, {Kind::missing, 0, {1}}},
     "group 'A': 2 ranks; 0 to 1 collectives begun\n"
     "  #0 all_reduce(sum, float32[4]): rank 1 (worker1) has not begun it\n"
     "    rank 0 (worker0): in #0 all_reduce(sum, float32[4]) at a.cc:2, for 99.0 s\n"
     "    rank 1 (worker1): in #0 all_gather(float32[4]) at b.cc:7 of group 'B', for 99.0 s\n"
     "group 'B': 2 ranks; 0 to 1 collectives begun\n"
     "  #0 all_gather(float32[4]): rank 1 (worker5) has not begun it\n"
     "    rank 0 (worker1): in #0 all_gather(float32[4]) at b.cc:7, for 99.0 s\n"
     "    rank 1 (worker5): has begun no operation\n"},
    // The later dump counts: the operation was done at that time.
    {"two_of_one_rank",
     [] {
       FlightJob job(2), later(2);
       job.all_do(sum, "a.cc:1", State::begun);
       later.all_do(sum, "a.cc:1");
       later.dump(0).records.taken += second;
       later.dump(1).records.taken += second;
       return joined({job.dumps(), later.dumps()});
     },
     {},
     "group 'world': 2 ranks; 1 collective begun\n"
     "  all ranks called the same operations, and none is in flight\n"},
    // Dumps of an earlier run, and of two groups with the same name.
    {"several_of_one_name",
     [] {
       FlightJob before(2, "dp"), now(2, "dp"), beside(2, "dp", {2, 3});
       before.does(0, sum, "old.cc:1", State::begun);
       for (const int rank : {0, 1}) {
         before.dump(rank).origin = 7;
         before.dump(rank).records.taken = 50 * second;
         beside.dump(rank).origin = 0xaaaa'bbbb'0000'0000;
       }
       now.all_do(sum, "a.cc:1");
       beside.all_do(sum, "a.cc:1");
       return joined({before.dumps(), now.dumps(), beside.dumps()});
     },
     {},
     "group 'dp@worker0.1': 2 ranks; 1 collective begun\n"
     "  all ranks called the same operations, and none is in flight\n"
     "group 'dp@worker2.1': 2 ranks; 1 collective begun\n"
     "  all ranks called the same operations, and none is in flight\n"
     "left out: 2 dumps of group 'dp' from an earlier run\n"},
    // Objects are gathered in separate rounds. One rank has already started the next collective.
    {"round_of_values",
     [] {
       FlightJob job(3);
       job.all_do(sum, "a.cc:1");
       for (const int rank : {0, 2}) job.gives(rank, "all_gather_object(string)", "a.cc:2", State::begun);
       job.does(1, sum, "a.cc:3", State::begun);
       return job.dumps();
     },
     {{Kind::cycle, std::nullopt, {}}, {Kind::missing, 1, {0, 2}}, {Kind::missing, std::nullopt, {1}}},
     "cycle of 2 waits: a deadlock, if each member waits for one operation before it begins the next\n"
     "  worker0 is in values #0 all_gather_object(string) at a.cc:2 of group 'world', which waits for "
     "worker1\n"
     "  worker1 is in #1 all_reduce(sum, float32[4]) at a.cc:3 of group 'world', which waits for worker0\n"
     "group 'world': 3 ranks; 1 to 2 collectives begun\n"
     "  #1 all_reduce(sum, float32[4]): ranks 0, 2 have not begun it\n"
     "    ranks 0, 2: in values #0 all_gather_object(string) at a.cc:2, for 98.0 s\n"
     "    rank 1 (worker1): in #1 all_reduce(sum, float32[4]) at a.cc:3, for 98.0 s\n"
     "  values #0 all_gather_object(string): rank 1 (worker1) has not begun it\n"
     "    ranks 0, 2: in values #0 all_gather_object(string) at a.cc:2, for 98.0 s\n"
     "    rank 1 (worker1): in #1 all_reduce(sum, float32[4]) at a.cc:3, for 98.0 s\n"},
    {"unlike_values",
     [] {
       FlightJob job(2);
       for (const int rank : {0, 1}) {
         job.gives(rank, "all_gather_object(string)", "a.cc:2", State::done);
         job.gives(rank, rank == 0 ? "split()" : "all_gather_object(i32)", "a.cc:3", State::failed);
       }
       return job.dumps();
     },
     {{Kind::mismatch, std::nullopt, {1}}},
     "group 'world': 2 ranks; 0 collectives begun\n"
     "  values #1: the ranks call different operations\n"
     "    rank 0 (worker0): split() at a.cc:3\n"
     "    rank 1 (worker1): all_gather_object(i32) at a.cc:3\n"},
    // An operation that is older than the ring of a rank counts as completed there.
    {"older_than_the_ring",
     [] {
       FlightJob job(2);
       for (int i = 0; i < 5; ++i) job.all_do(sum, "a.cc:1");
       auto& entries = job.dump(0).records.entries;
       entries.erase(entries.begin(), entries.begin() + 4);
       job.dump(1).records.entries[0].state = State::moving;
       return job.dumps();
     },
     {{Kind::in_progress, 0, {1}}},
     "group 'world': 2 ranks; 5 collectives begun\n"
     "  #0 all_reduce(sum, float32[4]): all ranks have begun it, rank 1 (worker1) is not done\n"
     "    rank 0 (worker0): done\n"
     "    rank 1 (worker1): in it at a.cc:1, data moves, for 99.0 s\n"},
};

class FlightVerdicts : public ::testing::TestWithParam<Case> {};

TEST_P(FlightVerdicts, HasTheExpectedText) {
  const Case& expected = GetParam();
  auto dumps = expected.dumps();
  for (int i = 0; i < 2; ++i) {
    const FlightVerdict verdict = flight_verdict(dumps);
    EXPECT_EQ(text_of(verdict), expected.text);
    ASSERT_EQ(verdict.findings.size(), expected.findings.size());
    for (std::size_t f = 0; f < verdict.findings.size(); ++f) {
      EXPECT_EQ(verdict.findings[f].kind, expected.findings[f].kind);
      EXPECT_EQ(verdict.findings[f].sequence, expected.findings[f].sequence);
      EXPECT_EQ(verdict.findings[f].ranks, expected.findings[f].ranks);
      if (expected.findings[f].kind != Kind::cycle) {
        EXPECT_EQ(verdict.findings[f].members.size(), verdict.findings[f].ranks.size());
      }
    }
    std::reverse(dumps.begin(), dumps.end());  // the order of the files does not count
  }
}

INSTANTIATE_TEST_SUITE_P(Hangs, FlightVerdicts, ::testing::ValuesIn(cases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FlightVerdict, OfNoDumpsIsEmpty) {
  EXPECT_TRUE(flight_verdict({}).findings.empty());
  EXPECT_EQ(text_of(flight_verdict({})), "");
}

TEST(FlightVerdict, OfManyRanksIsShort) {
  FlightJob job(600);
  for (int i = 0; i < 20; ++i) job.all_do(sum, "a.cc:1");
  job.all_do(sum, "a.cc:2", State::begun, {17, 400, 401, 402});
  const FlightVerdict verdict = flight_verdict(job.dumps({500}));
  ASSERT_EQ(verdict.findings.size(), 2U);
  EXPECT_EQ(verdict.findings[1].ranks, (std::vector<int>{17, 400, 401, 402}));
  EXPECT_NE(text_of(verdict).find("#20 all_reduce(sum, float32[4]): ranks 17, 400-402 have not begun it\n"
                                  "    ranks 0-16, 18-399, 403-499, 501-599: in #20"),
            std::string::npos)
      << text_of(verdict);
  EXPECT_LT(text_of(verdict).size(), 1000U);
}

}  // namespace flight_verdict_test
}  // namespace weft::collectives::testing
