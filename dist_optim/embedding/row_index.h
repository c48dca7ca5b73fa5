// RowIndex: maps the hash of an id to the number of its row, by open addressing with linear probing. A slot
// has five bytes (the row and eight bits of the hash), and 62 to 80 % of the slots are in use, so a row needs
// 6 to 8 bytes. The index's owner stores the ids: lookups compare them through `is_row(row)`.
//
// It is split into segments, each of which grows separately, by 30 %. They start with different sizes, so
// segments that fill evenly grow one after the other, and no call waits for a whole table to grow. Removal
// shifts back (Knuth, TAOCP 3, 6.4 R), so there are no tombstones. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft::dist_optim {

class RowIndex {
 public:
  // The number of a row in its owner's store; `none` is no row.
  using Row = std::uint32_t;
  static constexpr Row none = ~Row{0};

  // Prefetches the memory that find() reads for this hash.
  void prefetch(std::uint64_t hash) const {
    const Segment& segment = segment_of(hash);
    if (segment.tags.empty()) return;
    const std::size_t at = home(segment, hash);
    __builtin_prefetch(&segment.tags[at]);
    __builtin_prefetch(&segment.rows[at]);
  }
  // The first row whose eight bits equal those of the hash, or `none`: for prefetching the id that find()
  // will compare.
  Row candidate(std::uint64_t hash) const {
    return find(hash, [](Row) { return true; });
  }
  template <class IsRow>
  Row find(std::uint64_t hash, IsRow is_row) const {
    const Segment& segment = segment_of(hash);
    if (segment.tags.empty()) return none;
    const std::uint8_t tag = tag_of(hash);
    for (std::size_t at = home(segment, hash); segment.tags[at] != 0; at = next(segment, at))
      if (segment.tags[at] == tag && is_row(segment.rows[at])) return segment.rows[at];
    return none;
  }

  // The hash and row must not be in the index. hash_of(row) returns the hash of any row in the index.
  template <class HashOf>
  void insert(std::uint64_t hash, Row row, HashOf hash_of) {
    Segment& segment = segments_[hash >> shift];
    if ((segment.used + 1) * 5 > segment.tags.size() * 4) grow(segment, first_size(hash >> shift), hash_of);
    place(segment, hash, row);
    ++segment.used;
  }

  // The row must be in the index.
  template <class HashOf>
  void erase(std::uint64_t hash, Row row, HashOf hash_of) {
    Segment& segment = segments_[hash >> shift];
    std::size_t hole = home(segment, hash);
    while (segment.tags[hole] == 0 || segment.rows[hole] != row) hole = next(segment, hole);
    for (std::size_t at = next(segment, hole); segment.tags[at] != 0; at = next(segment, at)) {
      // The entry at `at` may move into the hole unless its home is (cyclically) behind the hole.
      const std::size_t wanted = home(segment, hash_of(segment.rows[at]));
      const bool stays = hole <= at ? hole < wanted && wanted <= at : hole < wanted || wanted <= at;
      if (stays) continue;
      segment.tags[hole] = segment.tags[at];
      segment.rows[hole] = segment.rows[at];
      hole = at;
    }
    segment.tags[hole] = 0;
    --segment.used;
  }

  std::size_t bytes() const {  // memory in use
    std::size_t all = sizeof *this;
    for (const Segment& segment : segments_) all += segment.tags.capacity() * (1 + sizeof(Row));
    return all;
  }

 private:
  static constexpr int shift = 58;  // the upper 6 bits select the segment
  struct Segment {
    std::vector<std::uint8_t> tags;  // 0: free
    std::vector<Row> rows;
    std::size_t used = 0;
  };

  static std::size_t first_size(std::size_t segment) { return 64 + segment * 19 / 64; }
  static std::uint8_t tag_of(std::uint64_t hash) {
    const auto tag = static_cast<std::uint8_t>(hash);
    return tag == 0 ? 1 : tag;
  }
  const Segment& segment_of(std::uint64_t hash) const { return segments_[hash >> shift]; }
  // The hash's middle bits, spread over the slots by a multiplication.
  static std::size_t home(const Segment& segment, std::uint64_t hash) {
    return static_cast<std::size_t>((((hash >> 8) & 0xffffffffu) * segment.tags.size()) >> 32);
  }
  static std::size_t next(const Segment& segment, std::size_t at) {
    return ++at == segment.tags.size() ? 0 : at;
  }
  static void place(Segment& segment, std::uint64_t hash, Row row) {
    std::size_t at = home(segment, hash);
    while (segment.tags[at] != 0) at = next(segment, at);
    segment.tags[at] = tag_of(hash);
    segment.rows[at] = row;
  }
  template <class HashOf>
  static void grow(Segment& segment, std::size_t first, HashOf hash_of) {
    const std::size_t slots = segment.tags.empty() ? first : segment.tags.size() * 13 / 10;
    const std::vector<std::uint8_t> tags = std::exchange(segment.tags, std::vector<std::uint8_t>(slots));
    const std::vector<Row> rows = std::exchange(segment.rows, std::vector<Row>(slots));
    for (std::size_t i = 0; i < tags.size(); ++i)
      if (tags[i] != 0) place(segment, hash_of(rows[i]), rows[i]);
  }

  std::array<Segment, 64> segments_;
};

}  // namespace weft::dist_optim
