// PlanBuilder: puts a plan together from whole transfers, in the order in which they would happen one by one.
//
// It cuts them into chunks, labels the messages, and finds what each step must wait for: a step that reads
// waits for who wrote there last, one that writes also for those that still read (a message that has not left
// yet). Both sides of a message add it in the same order, with the same size. Thread-safety: none.
#pragma once

#include <weft/parallel/collectives/plan/plan.h>

#include <array>
#include <map>

namespace weft::collectives {

class WEFT_EXPORT PlanBuilder {
 public:
  // Whether the three places have memory of their own, or may be one, as in an all_reduce in place: what is
  // at element 5 of one is then what is at element 5 of each.
  enum class Memory : std::uint8_t { apart, one };

  // chunk: elements of the largest message; 0: however many there are.
  PlanBuilder(Memory memory, std::size_t chunk) : memory_(memory), chunk_(chunk) {}

  // Transfers of no elements are no messages, or, where it is to be known that there is nothing, one.
  enum class Nothing : std::uint8_t { is_left_out, is_said };
  void send(int to, Place from, Range range, Nothing nothing = Nothing::is_left_out);
  void receive(int from, Place into, Range range, Nothing nothing = Nothing::is_left_out);
  void reduce(int from, Range range, Place with, std::size_t source);
  void finish(Range output, std::size_t source);
  void copy(Place into, Range range, std::size_t source);

  // Messages without elements: a signal is sent once all have come that this rank waits for so far.
  void signal(int to);
  void await_signal(int from);

  Plan take() { return std::move(plan_); }

 private:
  struct Segment {                       // of a place, up to the next one's key
    std::vector<std::uint32_t> writer;   // none or one
    std::vector<std::uint32_t> readers;  // since
  };
  using Segments = std::map<std::size_t, Segment>;

  template <class Add>
  void in_chunks(Range range, Add add, Nothing nothing = Nothing::is_left_out);
  Step& add(Step step);
  void reads(Place place, Range range);
  void writes(Place place, Range range);
  Segments& segments_of(Place place);
  std::uint32_t last() const { return static_cast<std::uint32_t>(plan_.steps.size() - 1); }
  void wait_for(std::uint32_t step);

  const Memory memory_;
  const std::size_t chunk_;
  Plan plan_;
  std::array<Segments, 3> segments_;
  std::map<int, std::uint32_t> sent_, received_;  // messages so far, by peer
  std::vector<std::uint32_t> signals_;            // that have been awaited
};

}  // namespace weft::collectives
