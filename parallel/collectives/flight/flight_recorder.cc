#include <weft/parallel/collectives/flight/flight_recorder.h>

#include <weft/rpc/core/site.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

namespace weft::collectives {

FlightRecorder::FlightRecorder(std::size_t most) : ring_(std::bit_ceil(std::max<std::size_t>(most, 1))) {}

FlightRecorder::Slot& FlightRecorder::add(const FlightOperation& operation, FlightClock::Ticks now) {
  const Ticket ticket = next_++;
  Slot& slot = ring_[ticket & (ring_.size() - 1)];
  if (slot.state != FlightState::done) keep(slot);
  slot.ticket = ticket;
  slot.state = FlightState::begun;
  slot.operation = operation;
  slot.operation.meaning = {};  // it belongs to the caller
  if (operation.begun == 0) slot.operation.begun = now;
  slot.meaning.assign(operation.meaning);
  slot.moved = operation.moved;
  slot.ended = 0;
  slot.trouble.reset();
  if (operation.kind == FlightKind::collective) begun_ = std::max(begun_, operation.sequence + 1);
  if (operation.kind == FlightKind::values) begun_values_ = std::max(begun_values_, operation.sequence + 1);
  return slot;
}

FlightRecorder::Ticket FlightRecorder::begin(const FlightOperation& operation) {
  const FlightClock::Ticks now = FlightClock::now();
  const std::lock_guard lock(lock_);
  return add(operation, now).ticket;
}

void FlightRecorder::note(const FlightOperation& operation) {
  const FlightClock::Ticks now = FlightClock::now();
  const std::lock_guard lock(lock_);
  Slot& slot = add(operation, now);
  slot.state = FlightState::done;
  slot.ended = now;
}

// Of the failed operations, the latest ones are kept, as many as the ring has places.
void FlightRecorder::keep(Slot& slot) {
  if (kept_.size() >= ring_.size()) {
    const auto failed = std::find_if(kept_.begin(), kept_.end(), [](const auto& entry) {
      return entry.second.state == FlightState::failed;
    });
    if (failed != kept_.end()) kept_.erase(failed);
  }
  const Ticket ticket = slot.ticket;
  kept_.emplace(ticket, std::exchange(slot, Slot{}));
}

FlightRecorder::Slot* FlightRecorder::find(Ticket ticket) {
  Slot& slot = ring_[ticket & (ring_.size() - 1)];
  if (slot.ticket == ticket) return &slot;
  const auto found = kept_.find(ticket);
  return found == kept_.end() ? nullptr : &found->second;
}

FlightRecorder::Slot* FlightRecorder::find_open(Ticket ticket) {
  Slot* const slot = find(ticket);
  return slot == nullptr || slot->ended != 0 ? nullptr : slot;
}

void FlightRecorder::moving(Ticket ticket, FlightClock::Ticks since) {
  const std::lock_guard lock(lock_);
  Slot* const slot = find_open(ticket);
  if (slot == nullptr || slot->moved != 0) return;
  slot->state = FlightState::moving;
  slot->moved = since;
}

void FlightRecorder::done(Ticket ticket) {
  const FlightClock::Ticks now = FlightClock::now();
  const std::lock_guard lock(lock_);
  Slot* const slot = find_open(ticket);
  if (slot == nullptr) return;
  slot->state = FlightState::done;
  slot->ended = now;
  if (!kept_.empty()) kept_.erase(ticket);  // operations that completed have been dropped already
}

void FlightRecorder::received(Ticket ticket, int from) {
  {
    const std::lock_guard lock(lock_);
    if (Slot* const slot = find_open(ticket)) slot->operation.peer = from;
  }
  done(ticket);
}

void FlightRecorder::failed(Ticket ticket, std::string_view error) {
  const FlightClock::Ticks now = FlightClock::now();
  const std::lock_guard lock(lock_);
  Slot* const slot = find_open(ticket);
  if (slot == nullptr) return;
  slot->state = FlightState::failed;
  slot->ended = now;
  if (slot->trouble == nullptr) slot->trouble = std::make_unique<Trouble>();
  slot->trouble->error = error;
}

void FlightRecorder::waits_for(Ticket ticket, std::vector<int> ranks) {
  const std::lock_guard lock(lock_);
  Slot* const slot = find_open(ticket);
  if (slot == nullptr) return;
  if (slot->trouble == nullptr) slot->trouble = std::make_unique<Trouble>();
  slot->trouble->waits_for = std::move(ranks);
}

FlightEntry FlightRecorder::entry_of(const Slot& slot, const FlightClock::Scale& scale) {
  const auto time = [&scale](FlightClock::Ticks ticks) { return ticks == 0 ? 0 : scale.time_of(ticks); };
  const FlightOperation& operation = slot.operation;
  FlightEntry entry;
  entry.kind = operation.kind;
  entry.state = slot.state;
  entry.number = slot.ticket;
  entry.sequence = operation.sequence;
  entry.text = slot.meaning;
  if (operation.site.known()) entry.site = operation.site.text();
  entry.bytes = operation.bytes;
  entry.peer = operation.peer;
  entry.tag = operation.tag;
  entry.begun = time(operation.begun);
  entry.moved = time(slot.moved);
  entry.ended = time(slot.ended);
  if (slot.trouble != nullptr) {
    entry.error = slot.trouble->error;
    entry.waits_for = slot.trouble->waits_for;
  }
  return entry;
}

// Texts of signatures are made outside the lock: callers that start an operation do not wait for them.
FlightRecords FlightRecorder::records() const {
  FlightRecords records;
  std::vector<FlightOperation::Render> renders;
  {
    const std::lock_guard lock(lock_);
    const FlightClock::Scale scale = clock_.scale();
    records.entries.reserve(ring_.size() + kept_.size());
    renders.reserve(ring_.size() + kept_.size());
    const auto add = [&](const Slot& slot) {
      records.entries.push_back(entry_of(slot, scale));
      renders.push_back(slot.operation.render);
    };
    for (const auto& [ticket, slot] : kept_) add(slot);
    // From the oldest operation of the ring. A ring that is not full begins with its first slot.
    for (std::size_t i = 0; i < ring_.size(); ++i)
      if (const Slot& slot = ring_[(next_ + i) & (ring_.size() - 1)]; slot.ticket != none) add(slot);
    records.taken = scale.taken();
    records.begun = begun_;
    records.begun_values = begun_values_;
    records.dropped = next_ - records.entries.size();
  }
  for (std::size_t i = 0; i < renders.size(); ++i)
    if (renders[i] != nullptr) records.entries[i].text = renders[i](records.entries[i].text);
  return records;
}

}  // namespace weft::collectives
