#include <weft/parallel/collectives/flight/flight_recorder.h>

#include <weft/rpc/core/site_text.h>

#include <algorithm>
#include <chrono>

namespace weft::collectives {

FlightRecorder::FlightRecorder(std::size_t most) : ring_(std::max<std::size_t>(most, 1)) {}

std::int64_t FlightRecorder::now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

FlightRecorder::Ticket FlightRecorder::begin(const FlightOperation& operation) {
  const std::int64_t begun = operation.begun != 0 ? operation.begun : now();
  const std::lock_guard lock(mutex_);
  const Ticket ticket = next_++;
  Slot& slot = ring_[ticket % ring_.size()];
  if (slot.state != FlightState::done) keep(slot);
  slot.ticket = ticket;
  slot.state = FlightState::begun;
  slot.operation = operation;
  slot.operation.meaning = {};  // the caller's
  slot.operation.begun = begun;
  slot.meaning.assign(operation.meaning);
  slot.moved = slot.ended = 0;
  slot.error.clear();
  slot.waits_for.clear();
  if (operation.kind == FlightKind::collective) begun_ = std::max(begun_, operation.sequence + 1);
  return ticket;
}

// Of those that failed the latest stay, as many as the ring has places.
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
  Slot& slot = ring_[ticket % ring_.size()];
  if (slot.ticket == ticket) return &slot;
  const auto found = kept_.find(ticket);
  return found == kept_.end() ? nullptr : &found->second;
}

void FlightRecorder::moving(Ticket ticket) {
  const std::int64_t when = now();
  const std::lock_guard lock(mutex_);
  Slot* const slot = find(ticket);
  if (slot == nullptr || slot->state != FlightState::begun) return;
  slot->state = FlightState::moving;
  slot->moved = when;
}

void FlightRecorder::done(Ticket ticket) {
  const std::int64_t when = now();
  const std::lock_guard lock(mutex_);
  if (kept_.erase(ticket) != 0) return;
  Slot* const slot = find(ticket);
  if (slot == nullptr || slot->ended != 0) return;
  slot->state = FlightState::done;
  slot->ended = when;
}

void FlightRecorder::received(Ticket ticket, int from) {
  {
    const std::lock_guard lock(mutex_);
    if (Slot* const slot = find(ticket)) slot->operation.peer = from;
  }
  done(ticket);
}

void FlightRecorder::failed(Ticket ticket, std::string_view error) {
  const std::int64_t when = now();
  const std::lock_guard lock(mutex_);
  Slot* const slot = find(ticket);
  if (slot == nullptr || slot->ended != 0) return;
  slot->state = FlightState::failed;
  slot->ended = when;
  slot->error.assign(error);
}

void FlightRecorder::waits_for(Ticket ticket, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  if (Slot* const slot = find(ticket)) slot->waits_for = std::move(ranks);
}

FlightEntry FlightRecorder::entry_of(const Slot& slot) {
  const FlightOperation& operation = slot.operation;
  FlightEntry entry;
  entry.kind = operation.kind;
  entry.state = slot.state;
  entry.number = slot.ticket;
  entry.sequence = operation.sequence;
  entry.text = operation.render == nullptr ? slot.meaning : operation.render(slot.meaning);
  if (operation.site.line() != 0) entry.site = rpc::site_text(operation.site);
  entry.bytes = operation.bytes;
  entry.peer = operation.peer;
  entry.tag = operation.tag;
  entry.begun = operation.begun;
  entry.moved = slot.moved;
  entry.ended = slot.ended;
  entry.error = slot.error;
  entry.waits_for = slot.waits_for;
  return entry;
}

// Texts are made outside the lock: who begins something does not wait for them.
FlightRecords FlightRecorder::records() const {
  FlightRecords records;
  std::vector<Slot> slots;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [ticket, slot] : kept_) slots.push_back(slot);
    for (const Slot& slot : ring_)
      if (slot.ticket != none) slots.push_back(slot);
    records.begun = begun_;
    records.dropped = next_ - slots.size();
    records.taken = now();
  }
  std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) { return a.ticket < b.ticket; });
  for (const Slot& slot : slots) records.entries.push_back(entry_of(slot));
  return records;
}

}  // namespace weft::collectives
