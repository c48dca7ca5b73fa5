#include <weft/dist_optim/embedding/row_store.h>

#include <weft/dist_optim/embedding/partition.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::dist_optim {

RowStore::RowStore(std::size_t dimension, RowOptimizer optimizer, RowInitializer initializer)
    : dimension_(dimension),
      record_(dimension + optimizer.state_size(dimension)),
      optimizer_(optimizer),
      initializer_(initializer) {
  optimizer_.check();
  initializer_.check();
  if (dimension == 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "embedding: the dimension is 0, expected at least 1");
}

std::size_t RowStore::bytes() const {
  const std::size_t row =
      record_ * sizeof(float) + sizeof(std::int64_t) + sizeof(std::uint32_t) + sizeof(Epoch);
  return sizeof *this - sizeof index_ + index_.bytes() + chunks_.size() * chunk_rows * row +
         chunks_.capacity() * sizeof(Chunk) + free_.capacity() * sizeof(Row) +
         erased_.capacity() * sizeof(Erased);
}

// This hash is independent of the hash of the partition, so the ids of one owner are spread over its whole
// table.
std::uint64_t RowStore::hash(std::int64_t id) {
  return rpc::split_mix(static_cast<std::uint64_t>(id) ^ 0x6a09e667f3bcc909ull);
}

RowStore::Row RowStore::find(std::int64_t id) const { return find(id, hash(id)); }

RowStore::Row RowStore::find(std::int64_t id, std::uint64_t hash) const {
  return index_.find(hash, [&](Row row) { return id_of(row) == id; });
}

RowStore::Row RowStore::add(std::int64_t id, std::uint64_t hash) {
  Row row;
  if (!free_.empty()) {
    row = free_.back();
    free_.pop_back();
  } else {
    if (end_ == RowIndex::none)
      throw rpc::Error(rpc::ErrorKind::resource_exhausted, "an owner of an embedding is full: 2^32 - 1 rows");
    if (end_ == chunks_.size() * chunk_rows) {
      Chunk chunk;
      chunk.records.reset(new float[chunk_rows * record_]);  // written when a row is made
      chunk.ids.reset(new std::int64_t[chunk_rows]);
      chunk.used.reset(new std::uint32_t[chunk_rows]);
      chunk.changed = std::make_unique<Epoch[]>(chunk_rows);
      chunks_.push_back(std::move(chunk));
    }
    row = end_++;
  }
  chunks_[row / chunk_rows].ids[row % chunk_rows] = id;
  index_.insert(hash, row, [this](Row other) { return RowStore::hash(id_of(other)); });
  ++size_;
  return row;
}

RowStore::Row RowStore::make(std::int64_t id, std::uint64_t hash) {
  const Row row = add(id, hash);
  float* record = record_of(row);
  initializer_.fill(id, record, dimension_);
  optimizer_.begin(record + dimension_, dimension_);
  used(row) = now_;
  changed(row) = epoch_;
  return row;
}

void RowStore::remove(Row row) {
  const std::int64_t id = id_of(row);
  index_.erase(hash(id), row, [this](Row other) { return hash(id_of(other)); });
  changed(row) = 0;
  free_.push_back(row);
  --size_;
  if (remembered_ == std::numeric_limits<Epoch>::max()) return;
  erased_.push_back({id, epoch_});
  // If there are more erasures than rows, a list of all rows is shorter. This list may never be requested.
  if (erased_.size() > size_ + 1024) {
    remembered_ = std::numeric_limits<Epoch>::max();
    erased_ = {};
  }
}

// Cache misses dominate the cost of a lookup: a group of ids waits for memory together (group prefetching,
// Chen and others 2004).
template <class Visit>
void RowStore::each(std::span<const std::int64_t> ids, Visit visit) const {
  constexpr std::size_t group = 16;
  std::array<std::uint64_t, group> hashes;
  for (std::size_t from = 0; from < ids.size(); from += group) {
    const std::size_t count = std::min(group, ids.size() - from);
    for (std::size_t i = 0; i < count; ++i) {
      hashes[i] = hash(ids[from + i]);
      index_.prefetch(hashes[i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const Row row = index_.candidate(hashes[i]);
      if (row == RowIndex::none) continue;
      const Chunk& chunk = chunks_[row / chunk_rows];
      const Row at = row % chunk_rows;
      __builtin_prefetch(&chunk.ids[at]);
      __builtin_prefetch(&chunk.used[at], 1);
      const auto* record = reinterpret_cast<const char*>(&chunk.records[at * record_]);
      for (std::size_t byte = 0; byte < record_ * sizeof(float) && byte < 512; byte += 64)
        __builtin_prefetch(record + byte);
    }
    for (std::size_t i = 0; i < count; ++i) visit(from + i, hashes[i]);
  }
}

void RowStore::lookup(std::span<const std::int64_t> ids, float* values, bool make_them) {
  each(ids, [&](std::size_t i, std::uint64_t hash) {
    Row row = find(ids[i], hash);
    if (row == RowIndex::none) {
      if (!make_them) return initializer_.fill(ids[i], values + i * dimension_, dimension_);
      row = make(ids[i], hash);
    }
    if (make_them) used(row) = now_;
    std::memcpy(values + i * dimension_, record_of(row), dimension_ * sizeof(float));
  });
}

void RowStore::update(std::span<const std::int64_t> ids, const float* gradients) {
  each(ids, [&](std::size_t i, std::uint64_t hash) {
    Row row = find(ids[i], hash);
    if (row == RowIndex::none) row = make(ids[i], hash);
    used(row) = now_;
    changed(row) = epoch_;
    float* record = record_of(row);
    optimizer_.update(record, record + dimension_, gradients + i * dimension_, dimension_);
  });
}

bool RowStore::erase(std::int64_t id) {
  const Row row = find(id);
  if (row == RowIndex::none) return false;
  remove(row);
  return true;
}

std::size_t RowStore::evict_older(std::uint32_t age) {
  const std::size_t before = size_;
  for (Row row = 0; row < end_; ++row)
    if (changed(row) != 0 && now_ - used(row) >= age) remove(row);
  return before - size_;
}

std::size_t RowStore::evict_to(std::size_t rows) {
  if (size_ <= rows) return 0;
  const std::size_t before = size_;
  std::vector<std::uint32_t> ages;
  ages.reserve(size_);
  for (Row row = 0; row < end_; ++row)
    if (changed(row) != 0) ages.push_back(now_ - used(row));
  // The age of the youngest evicted row; of the rows of this age, only as many as needed.
  const auto cut = ages.begin() + static_cast<std::ptrdiff_t>(rows);
  std::nth_element(ages.begin(), cut, ages.end());
  const std::uint32_t limit = *cut;
  for (Row row = 0; row < end_; ++row)
    if (changed(row) != 0 && now_ - used(row) > limit) remove(row);
  for (Row row = 0; row < end_ && size_ > rows; ++row)
    if (changed(row) != 0 && now_ - used(row) == limit) remove(row);
  return before - size_;
}

RowBlock RowStore::take_out(Row from, Row count, Epoch since, const Wanted& wanted) const {
  RowBlock block;
  const Row last = count < end_ - std::min(from, end_) ? from + count : end_;
  for (Row row = from; row < last; ++row) {
    if (changed(row) == 0 || changed(row) <= since || !wanted(id_of(row))) continue;
    block.ids.push_back(id_of(row));
    block.ages.push_back(now_ - used(row));
    block.records.insert(block.records.end(), record_of(row), record_of(row) + record_);
  }
  return block;
}

void RowStore::put(const RowBlock& block) {
  if (block.ages.size() != block.ids.size() || block.records.size() != block.ids.size() * record_)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "embedding: " + std::to_string(block.ids.size()) + " rows arrived with " +
                         std::to_string(block.ages.size()) + " ages and " +
                         std::to_string(block.records.size()) + " floats, expected " +
                         std::to_string(record_) + " floats a row");
  for (std::size_t i = 0; i < block.ids.size(); ++i) {
    const std::uint64_t at = hash(block.ids[i]);
    Row row = find(block.ids[i], at);
    if (row == RowIndex::none) row = add(block.ids[i], at);
    used(row) = now_ - block.ages[i];
    changed(row) = epoch_;
    std::memcpy(record_of(row), &block.records[i * record_], record_ * sizeof(float));
  }
}

std::vector<std::int64_t> RowStore::erased(Epoch since) const {
  std::vector<std::int64_t> ids;
  for (const Erased& one : erased_)
    if (one.epoch > since) ids.push_back(one.id);
  return ids;
}

void RowStore::remember(Epoch since) {
  remembered_ = since;
  std::erase_if(erased_, [since](const Erased& one) { return one.epoch <= since; });
}

}  // namespace weft::dist_optim
