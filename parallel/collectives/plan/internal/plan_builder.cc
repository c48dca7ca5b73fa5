#include <weft/parallel/collectives/plan/internal/plan_builder.h>

#include <algorithm>

namespace weft::collectives {

namespace {

// Makes `at` the beginning of a segment.
template <class Segments>
auto cut(Segments& segments, std::size_t at) {
  auto next = segments.lower_bound(at);
  if (next != segments.end() && next->first == at) return next;
  if (next == segments.begin()) return segments.emplace_hint(next, at, typename Segments::mapped_type{});
  return segments.emplace_hint(next, at, std::prev(next)->second);
}

}  // namespace

template <class Add>
void PlanBuilder::in_chunks(Range range, Add add, Nothing nothing) {
  if (range.empty() && nothing == Nothing::is_said) add(range);
  const std::size_t most = chunk_ == 0 ? range.size() : chunk_;
  for (std::size_t begin = range.begin; begin < range.end; begin += most) {
    add(Range{begin, std::min(begin + most, range.end)});
  }
}

Step& PlanBuilder::add(Step step) {
  plan_.steps.push_back(std::move(step));
  return plan_.steps.back();
}

PlanBuilder::Segments& PlanBuilder::segments_of(Place place) {
  return segments_[memory_ == Memory::one ? 0 : static_cast<std::size_t>(place)];
}

void PlanBuilder::wait_for(std::uint32_t step) {
  auto& after = plan_.steps.back().after;
  if (step != last() && std::find(after.begin(), after.end(), step) == after.end()) after.push_back(step);
}

void PlanBuilder::reads(Place place, Range range) {
  if (place == Place::input && memory_ == Memory::apart) return;  // no step writes there
  Segments& segments = segments_of(place);
  auto segment = cut(segments, range.begin);
  const auto end = cut(segments, range.end);
  for (; segment != end; ++segment) {
    for (const std::uint32_t writer : segment->second.writer) wait_for(writer);
    segment->second.readers.push_back(last());
  }
}

void PlanBuilder::writes(Place place, Range range) {
  Segments& segments = segments_of(place);
  auto segment = cut(segments, range.begin);
  const auto end = cut(segments, range.end);
  for (; segment != end; ++segment) {
    for (const std::uint32_t writer : segment->second.writer) wait_for(writer);
    for (const std::uint32_t reader : segment->second.readers) wait_for(reader);
    segment->second.writer = {last()};
    segment->second.readers.clear();
  }
}

void PlanBuilder::send(int to, Place from, Range range, Nothing nothing) {
  in_chunks(
      range,
      [&](Range piece) {
        add({.kind = Step::Kind::send, .place = from, .peer = to, .label = sent_[to]++, .range = piece});
        if (!piece.empty()) reads(from, piece);
      },
      nothing);
}

void PlanBuilder::receive(int from, Place into, Range range, Nothing nothing) {
  in_chunks(
      range,
      [&](Range piece) {
        add({.kind = Step::Kind::receive,
             .place = into,
             .peer = from,
             .label = received_[from]++,
             .range = piece});
        if (!piece.empty()) writes(into, piece);
      },
      nothing);
}

void PlanBuilder::reduce(int from, Range range, Place with, std::size_t source) {
  in_chunks(range, [&](Range piece) {
    const std::size_t begin = source + (piece.begin - range.begin);
    add({.kind = Step::Kind::reduce,
         .place = with,
         .peer = from,
         .label = received_[from]++,
         .range = piece,
         .source = begin});
    reads(with, {begin, begin + piece.size()});
    writes(Place::accumulator, piece);
    plan_.accumulator = std::max(plan_.accumulator, piece.end);
  });
}

void PlanBuilder::finish(Range output, std::size_t source) {
  in_chunks(output, [&](Range piece) {
    const std::size_t begin = source + (piece.begin - output.begin);
    add({.kind = Step::Kind::finish, .place = Place::output, .range = piece, .source = begin});
    reads(Place::accumulator, {begin, begin + piece.size()});
    writes(Place::output, piece);
  });
}

void PlanBuilder::copy(Place into, Range range, std::size_t source) {
  if (range.empty()) return;
  add({.kind = Step::Kind::copy, .place = into, .range = range, .source = source});
  reads(Place::input, {source, source + range.size()});
  writes(into, range);
}

void PlanBuilder::signal(int to) {
  add({.kind = Step::Kind::send, .peer = to, .label = sent_[to]++, .after = signals_});
}

void PlanBuilder::await_signal(int from) {
  add({.kind = Step::Kind::receive, .place = Place::output, .peer = from, .label = received_[from]++});
  signals_.push_back(last());
}

}  // namespace weft::collectives
