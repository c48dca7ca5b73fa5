// PlanBuilder: builds a plan from whole transfers, in the order in which they would happen one by one.
//
// The builder divides transfers into chunks, labels the messages, and finds the dependencies of each step. A
// step that reads waits for the last step that wrote the same elements. A step that writes also waits for the
// steps that still read them (a message that has not been sent yet). The builders of two ranks must add the
// messages between these ranks in the same order, with the same sizes. Thread-safety: none.
#pragma once

#include <weft/parallel/collectives/plan/internal/plan.h>

#include <array>
#include <map>

namespace weft::collectives {

class WEFT_EXPORT PlanBuilder {
 public:
  // Whether the three places have separate memory, or may be the same memory, as in an all_reduce in place.
  // In the same memory, element 5 of one place is element 5 of each.
  enum class Memory : std::uint8_t { apart, one };

  // chunk: elements of the largest message; 0: unlimited.
  PlanBuilder(Memory memory, std::size_t chunk) : memory_(memory), chunk_(chunk) {}

  // For transfers of no elements: is_left_out sends no message, is_said sends a message without data.
  enum class Nothing : std::uint8_t { is_left_out, is_said };
  void send(int to, Place from, Range range, Nothing nothing = Nothing::is_left_out);
  void receive(int from, Place into, Range range, Nothing nothing = Nothing::is_left_out);
  // Add steps of the kinds with these names (Step::Kind), in chunks.
  void reduce(int from, Range range, Place with, std::size_t source);
  void finish(Range output, std::size_t source);
  void copy(Place into, Range range, std::size_t source);

  // Messages without elements. signal() sends its message once the messages of all earlier calls of
  // await_signal() have arrived.
  void signal(int to);
  void await_signal(int from);

  // The plan. Call it once, last.
  Plan take() { return std::move(plan_); }

 private:
  struct Segment {                       // the elements of a place from this key up to the next key
    std::vector<std::uint32_t> writer;   // none or one element
    std::vector<std::uint32_t> readers;  // after the writer
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
  std::map<int, std::uint32_t> sent_, received_;  // number of messages so far, by peer
  std::vector<std::uint32_t> signals_;            // signals that have been awaited
};

}  // namespace weft::collectives
