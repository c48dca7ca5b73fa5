#include <weft/parallel/collectives/internal/shm/shared_transfer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

namespace weft::collectives {
namespace {

// Up to this number of bytes, a rank reads all data of the others. With more, it reads one block of their
// data, and then their results. The first way needs one wait instead of two.
constexpr std::size_t max_read_whole = 128 << 10;

// Bytes of shared memory that are processed between two checks for a stop.
constexpr std::size_t stretch_bytes = 1 << 20;

bool in_two(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce;
}

bool reads_blocks(const Layout& layout, std::size_t item, int ranks) {
  const std::size_t bytes = layout.elements * item;
  return in_two(layout.operation) &&
         (bytes > SharedSpace::slot_bytes || bytes * static_cast<std::size_t>(ranks) > max_read_whole);
}

// This number of bytes of accumulators at a time: they stay in the nearest cache until the last operand has
// been added.
constexpr std::size_t block_bytes = 16 << 10;

// For each i < n: outputs[…][i] = operands[0][i] ⊕ operands[1][i] ⊕ …, in this order, scaled and rounded
// once. Outputs may be operands. At least one operand (a single one is copied) and at least one output.
void reduce_all(const Reduction& reduction, std::span<const std::byte* const> operands,
                std::span<std::byte* const> outputs, std::size_t n) {
  const std::size_t item = reduction.item_size();
  if (operands.size() == 1) {
    for (std::byte* output : outputs)
      if (n != 0 && output != operands.front()) std::memcpy(output, operands.front(), n * item);
    return;
  }
  const std::size_t block = block_bytes / reduction.accumulator_size();
  const int ranks = static_cast<int>(operands.size());
  alignas(64) std::array<std::byte, block_bytes> sums;
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    const auto operand = [&](std::size_t i) { return Reduction::Operand{operands[i] + begin * item, false}; };
    std::byte* const output = outputs.front() + begin * item;
    // The sum with the last operand is written to its destination, unless it still has to be processed.
    const bool rounds = reduction.accumulates_wide();
    const auto target = [&](std::size_t i) {
      return i + 1 == operands.size() && !rounds ? output : sums.data();
    };
    reduction.combine(target(1), operand(0), operand(1), count);
    for (std::size_t i = 2; i < operands.size(); ++i)
      reduction.combine(target(i), {sums.data(), true}, operand(i), count);
    if (reduction.finishes()) reduction.finish(output, target(operands.size() - 1), count, ranks);
    for (std::byte* other : outputs.subspan(1)) std::memcpy(other + begin * item, output, count * item);
  }
}

}  // namespace

SharedTransfer::SharedTransfer(SharedSpace& space, const Collective& collective)
    : space_(space),
      collective_(collective),
      item_(collective.memory.item_size),
      in_blocks_(reads_blocks(collective.layout, item_, space.ranks())),
      traffic_(collective.layout, space.rank(), space.ranks(), in_blocks_) {}

std::size_t SharedTransfer::bytes() const {
  std::size_t elements = collective_.layout.elements;
  for (int other = 0; other < ranks(); ++other)
    elements = std::max({elements, traffic_.gives(other).size(), traffic_.takes(other).end});
  return elements * item_;
}

SharedTransfer::State SharedTransfer::advance(Lockstep::Patience patience) {
  while (true) {
    // Nothing is published after a stop: the previous collective may have ended in the middle.
    if (space_.lockstep().stopped()) return State::stopped;
    if (stage_ == Stage::start) {
      announce();
      stage_ = Stage::announced;
    }
    if (!space_.lockstep().await_all(awaited_.load(std::memory_order_relaxed), patience))
      return space_.lockstep().stopped() ? State::stopped : State::in_progress;
    State state = State::in_progress;
    switch (stage_) {
      case Stage::start:
        break;
      case Stage::announced:
        arrived_.store(FlightClock::now(), std::memory_order_relaxed);
        state = choose();
        break;
      case Stage::mismatch:
        read_texts();
        state = State::differs;
        break;
      case Stage::chunked:
        state = take_part() ? State::done : State::in_progress;
        break;
      case Stage::zero_copy:
        state = State::done;
        break;
    }
    if (state == State::done && collective_.after) collective_.after();
    if (state != State::in_progress) return state;
  }
}

void SharedTransfer::publish() { awaited_.store(space_.lockstep().publish(), std::memory_order_release); }

// --- Announcements ---

// Whether the range that one rank gives to another rank may differ from the range that the other rank reads.
bool SharedTransfer::is_exchange_of_sizes() const {
  return collective_.layout.operation == Operation::all_to_all_v;
}

void SharedTransfer::announce() {
  if (collective_.before) collective_.before();
  SharedHeader header{.hash = collective_.signature.hash()};
  header.most = traffic_.max_given();
  const PlanMemory& memory = collective_.memory;
  const std::size_t given = header.most * item_;
  const std::size_t areas = traffic_.gives_all_the_same() ? 1 : static_cast<std::size_t>(ranks());
  const std::size_t area = SharedSpace::slot_bytes / areas / 64 * 64;
  header.small = !in_blocks_ && given <= area;
  if (header.small && given != 0) {
    std::byte* const slot = space_.slot(rank(), sequence_);
    for (int taker = 0; taker < ranks(); ++taker) {
      const Range range = traffic_.gives(taker);
      if (range.empty() || (taker == rank() && areas != 1)) continue;
      std::memcpy(slot + (areas == 1 ? 0 : static_cast<std::size_t>(taker) * area), input(range.begin),
                  range.size() * item_);
      if (areas == 1) break;
    }
  } else if (given != 0) {
    // The end of the part of the input that any rank reads.
    std::size_t end = 0;
    for (int taker = 0; taker < ranks(); ++taker) end = std::max(end, traffic_.gives(taker).end);
    if (const auto offset = space_.offset_of(memory.input, end * item_)) header.input = *offset;
  }
  header.zero_copy = (given == 0 || header.input != SharedHeader::nowhere) && !is_exchange_of_sizes();
  if (in_blocks_ && traffic_.takes_result()) {
    if (const auto offset = space_.offset_of(memory.output, collective_.layout.elements * item_))
      header.output = *offset;
    header.zero_copy = header.zero_copy && header.output != SharedHeader::nowhere;
  }
  if (is_exchange_of_sizes())
    for (int taker = 0; taker < ranks(); ++taker)
      space_.sizes(rank(), sequence_)[taker] = traffic_.gives(taker).size();
  space_.header(rank(), sequence_) = header;
  publish();
}

SharedTransfer::State SharedTransfer::choose() {
  bool same = true, small = true, zero_copy = true;
  std::uint64_t most = 0;
  headers_.clear();
  for (int other = 0; other < ranks(); ++other) {
    const SharedHeader& header = headers_.emplace_back(space_.header(other, sequence_));
    same = same && header.hash == headers_.front().hash;
    small = small && header.small;
    zero_copy = zero_copy && header.zero_copy;
    most = std::max(most, header.most);
  }
  if (!same) {
    auto& own = space_.text(rank(), sequence_);
    const std::string text = collective_.text();
    std::memcpy(own, text.data(), std::min(text.size(), sizeof own - 1));
    own[std::min(text.size(), sizeof own - 1)] = 0;
    stage_ = Stage::mismatch;
    publish();
    return State::in_progress;
  }
  if (is_exchange_of_sizes()) expect_sizes();
  if (small) {
    const std::size_t areas = traffic_.gives_all_the_same() ? 1 : static_cast<std::size_t>(ranks());
    const std::size_t area = areas == 1 ? 0 : SharedSpace::slot_bytes / areas / 64 * 64;
    take({0, most},
         [&](int giver) { return space_.slot(giver, sequence_) + static_cast<std::size_t>(rank()) * area; });
    return State::done;
  }
  if (zero_copy) return take_zero_copy();
  parts_ = (most + part_size() - 1) / part_size();
  stage_ = Stage::chunked;
  put(0);
  publish();
  return State::in_progress;
}

void SharedTransfer::expect_sizes() const {
  for (int giver = 0; giver < ranks(); ++giver) {
    const std::uint64_t size = space_.sizes(giver, sequence_)[rank()];
    if (size != traffic_.takes(giver).size())
      throw rpc::Error(rpc::ErrorKind::invalid_argument, "rank " + std::to_string(giver) + " has " +
                                                             std::to_string(size) + " elements for rank " +
                                                             std::to_string(rank()) + ", which expects " +
                                                             std::to_string(traffic_.takes(giver).size()));
  }
}

// Call it before this rank starts the next collective, which uses the areas of texts again.
void SharedTransfer::read_texts() {
  for (int other = 0; other < ranks(); ++other) {
    const auto& text = space_.text(other, sequence_);
    texts_.emplace_back(text, ::strnlen(text, sizeof text));
  }
}

// --- Reading ---

// Takes the part of each range that this rank reads. source(giver): the beginning of a giver's part.
template <class Source>
void SharedTransfer::take(Range part, Source source) {
  const auto cut = [&](Range whole) {
    return Range{std::min(whole.size(), part.begin), std::min(whole.size(), part.end)};
  };
  if (traffic_.reduces()) {
    const Range range = traffic_.takes(rank());
    const Range now = cut(range);
    if (now.empty()) return;
    c10::SmallVector<const std::byte*, 8> operands;
    for (int giver = 0; giver < ranks(); ++giver)
      operands.push_back(giver == rank() ? input(traffic_.gives(giver).begin + now.begin) : source(giver));
    std::byte* const result = output(range.begin + now.begin);
    return reduce_all(*collective_.reduction, operands, std::span(&result, 1), now.size());
  }
  // Each rank starts with a different rank, so that not all of them read the same memory at the same time.
  for (int i = 0; i < ranks(); ++i) {
    const int giver = (rank() + i) % ranks();
    const Range range = traffic_.takes(giver);
    const Range now = cut(range);
    if (now.empty()) continue;
    const std::byte* const from =
        giver == rank() ? input(traffic_.gives(giver).begin + now.begin) : source(giver);
    std::byte* const to = output(range.begin + now.begin);
    if (from != to) std::memcpy(to, from, now.size() * item_);
  }
}

SharedTransfer::State SharedTransfer::take_zero_copy() {
  const Layout& layout = collective_.layout;
  if (in_blocks_) {
    const Range block = traffic_.block(rank());
    const std::size_t bytes = layout.elements * item_;
    c10::SmallVector<const std::byte*, 8> inputs, operands;
    c10::SmallVector<std::byte*, 8> outputs, results;
    for (int other = 0; other < ranks(); ++other) {
      inputs.push_back(space_.memory_of(other, header_of(other).input, bytes));
      if (layout.root < 0 || layout.root == other)
        outputs.push_back(space_.memory_of(other, header_of(other).output, bytes));
    }
    for (std::size_t begin = block.begin; begin < block.end && !space_.lockstep().stopped();) {
      const std::size_t end = std::min(block.end, begin + stretch_bytes / item_);
      operands.clear(), results.clear();
      for (const std::byte* from : inputs) operands.push_back(from + begin * item_);
      for (std::byte* to : outputs) results.push_back(to + begin * item_);
      reduce_all(*collective_.reduction, operands, results, end - begin);
      begin = end;
    }
  } else {
    c10::SmallVector<const std::byte*, 8> sources;
    for (int giver = 0; giver < ranks(); ++giver) {
      const Range range = Traffic(layout, giver, ranks(), false).gives(rank());
      sources.push_back(
          range.empty() || giver == rank()
              ? nullptr
              : space_.memory_of(giver, header_of(giver).input + range.begin * item_, range.size() * item_));
    }
    const std::size_t stretch = stretch_bytes / item_;
    std::size_t most = 0;
    for (int giver = 0; giver < ranks(); ++giver) most = std::max(most, traffic_.takes(giver).size());
    for (std::size_t begin = 0; begin < most && !space_.lockstep().stopped(); begin += stretch)
      take({begin, begin + stretch},
           [&](int giver) { return sources[static_cast<std::size_t>(giver)] + begin * item_; });
  }
  if (space_.lockstep().stopped()) return State::stopped;  // a part of the data was not read
  stage_ = Stage::zero_copy;
  publish();
  return State::in_progress;
}

// --- Part by part ---

std::size_t SharedTransfer::part_size() const {
  return (traffic_.gives_all_the_same() ? space_.window_bytes() : space_.chunk()) / item_;
}

Range SharedTransfer::part_of(Range whole, std::uint64_t part) const {
  const std::size_t begin = std::min(whole.size(), part * part_size());
  return {whole.begin + begin, whole.begin + std::min(whole.size(), begin + part_size())};
}

void SharedTransfer::put(std::uint64_t part) {
  std::byte* const window = space_.window(rank(), part);
  for (int taker = 0; taker < ranks(); ++taker) {
    const bool same = traffic_.gives_all_the_same();
    const Range range = part_of(traffic_.gives(taker), part);
    if (range.empty() || (taker == rank() && (!same || ranks() == 1))) continue;
    std::memcpy(window + (same ? 0 : static_cast<std::size_t>(taker) * space_.chunk()), input(range.begin),
                range.size() * item_);
    if (same) return;
  }
}

// Call it when all ranks have published the previous step. Returns true if that was the last step. Part p is
// written in step p and read, or reduced, in step p + 1; its result is gathered in step p + 2.
bool SharedTransfer::take_part() {
  const std::uint64_t step = ++part_;
  if (step < parts_) put(step);
  if (step <= parts_) reduce_part(step - 1);
  if (in_blocks_ && step >= 2) gather_part(step - 2);
  const bool last = step == parts_ + (in_blocks_ ? 1 : 0);
  if (!last) publish();
  return last;
}

void SharedTransfer::reduce_part(std::uint64_t part) {
  const std::size_t at =
      traffic_.gives_all_the_same() ? 0 : static_cast<std::size_t>(rank()) * space_.chunk();
  const auto source = [&](int giver) { return space_.window(giver, part) + at; };
  if (!in_blocks_) return take({part * part_size(), (part + 1) * part_size()}, source);
  const Range range = part_of(traffic_.block(rank()), part);
  if (range.empty()) return;
  c10::SmallVector<const std::byte*, 8> operands;
  for (int giver = 0; giver < ranks(); ++giver)
    operands.push_back(giver == rank() ? input(range.begin) : source(giver));
  c10::SmallVector<std::byte*, 2> results{space_.result(rank(), part)};
  if (traffic_.takes_result()) results.push_back(output(range.begin));
  reduce_all(*collective_.reduction, operands, results, range.size());
}

void SharedTransfer::gather_part(std::uint64_t part) {
  if (!traffic_.takes_result()) return;
  for (int i = 1; i < ranks(); ++i) {
    const int other = (rank() + i) % ranks();
    const Range range = part_of(traffic_.block(other), part);
    std::memcpy(output(range.begin), space_.result(other, part), range.size() * item_);
  }
}

}  // namespace weft::collectives
