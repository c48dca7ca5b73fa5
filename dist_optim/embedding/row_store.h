// RowStore: the rows of an embedding that one owner keeps. Rows are created on first use. The least recently
// used rows are evicted first. The store records when each row last changed.
//
// A row consists of `dimension` floats and its optimizer's state, next to each other in a chunk of rows that
// never moves: growth copies no row. In addition, each row needs 16 bytes (id, last use, last change), and 6
// to 8 bytes in the index. Erased rows leave space for later ones; memory is not returned.
//
// There are two clocks. For use: tick() is called once for each batch of updates, and a row's age is the
// number of ticks since its last use. For changes: close_epoch() ends an epoch, and the rows that were
// changed or erased after an epoch can be listed. An incremental checkpoint writes this list.
//
// Owned by an EmbeddingShard. Not thread-safe. Errors: resource_exhausted if the store would have more than
// 2^32 - 1 rows.
#pragma once

#include <weft/dist_optim/embedding/row_index.h>
#include <weft/dist_optim/embedding/row_initializer.h>
#include <weft/dist_optim/embedding/row_optimizer.h>

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace weft::dist_optim {

// Rows in transit to another owner or to a file.
struct RowBlock {
  std::vector<std::int64_t> ids;
  std::vector<std::uint32_t> ages;
  std::vector<float> records;  // for each row its values, then its state
};

class WEFT_EXPORT RowStore {
 public:
  // Row: a row's number, which may be reused after the row was erased. Epoch: the number of an epoch, from 1.
  using Row = RowIndex::Row;
  using Epoch = std::uint32_t;

  // dimension: elements of a row.
  RowStore(std::size_t dimension, RowOptimizer optimizer, RowInitializer initializer);

  std::size_t dimension() const { return dimension_; }  // floats of a row's values
  std::size_t record_size() const { return record_; }   // floats: values and state
  std::size_t size() const { return size_; }            // rows
  std::size_t bytes() const;                            // of all memory that the store holds
  // The optimizer of the rows. A new learning rate applies from the next update on.
  const RowOptimizer& optimizer() const { return optimizer_; }
  void set_learning_rate(double rate) { optimizer_.learning_rate = rate; }

  // --- Use ---
  // Writes ids.size() × dimension floats to `values`. make true: creates missing rows, and marks all these
  // rows as used now. make false: changes nothing, and a missing row has the values with which it would be
  // created.
  void lookup(std::span<const std::int64_t> ids, float* values, bool make);
  // gradients: ids.size() × dimension. An id that occurs twice is updated twice.
  void update(std::span<const std::int64_t> ids, const float* gradients);
  bool contains(std::int64_t id) const { return find(id) != RowIndex::none; }
  void tick() { ++now_; }

  // --- Removal ---
  bool erase(std::int64_t id);
  std::size_t evict_older(std::uint32_t age);  // rows of this age or older; returns their number
  // Evicts the least recently used rows until at most `rows` are left. Rows of equal age are evicted in any
  // order.
  std::size_t evict_to(std::size_t rows);

  // --- Rows as blocks ---
  // take_out() copies the rows with numbers in [from, from + count) that exist, changed after `since` and are
  // wanted. end(): one more than the largest number of a row.
  Row end() const { return end_; }
  using Wanted = std::function<bool(std::int64_t id)>;
  RowBlock take_out(Row from, Row count, Epoch since, const Wanted& wanted) const;
  void put(const RowBlock& block);  // adds or overwrites

  // --- Changes ---
  Epoch close_epoch() { return epoch_++; }
  // Whether the store has recorded all erasures after `since`. If not, only a full checkpoint is complete.
  bool remembers(Epoch since) const { return since >= remembered_; }
  // The ids that were erased after `since`. Some of these rows may have been created again.
  std::vector<std::int64_t> erased(Epoch since) const;
  // From now on the store records erasures. It drops the records of erasures up to `since`.
  void remember(Epoch since);

 private:
  static constexpr Row chunk_rows = 4096;
  struct Chunk {
    std::unique_ptr<float[]> records;
    std::unique_ptr<std::int64_t[]> ids;
    std::unique_ptr<std::uint32_t[]> used;  // time of the last use, in ticks
    std::unique_ptr<Epoch[]> changed;       // epoch of the last change; 0: no row
  };
  struct Erased {
    std::int64_t id;
    Epoch epoch;
  };

  static std::uint64_t hash(std::int64_t id);
  std::int64_t id_of(Row row) const { return chunks_[row / chunk_rows].ids[row % chunk_rows]; }
  float* record_of(Row row) const { return &chunks_[row / chunk_rows].records[row % chunk_rows * record_]; }
  std::uint32_t& used(Row row) const { return chunks_[row / chunk_rows].used[row % chunk_rows]; }
  Epoch& changed(Row row) const { return chunks_[row / chunk_rows].changed[row % chunk_rows]; }
  Row find(std::int64_t id) const;
  Row find(std::int64_t id, std::uint64_t hash) const;
  Row add(std::int64_t id, std::uint64_t hash);  // without values
  Row make(std::int64_t id, std::uint64_t hash);
  void remove(Row row);
  // Calls visit(i, hash) for every id, after prefetching the memory that the table and the rows need for it.
  template <class Visit>
  void each(std::span<const std::int64_t> ids, Visit visit) const;

  const std::size_t dimension_, record_;
  RowOptimizer optimizer_;
  const RowInitializer initializer_;
  RowIndex index_;
  std::vector<Chunk> chunks_;
  std::vector<Row> free_;
  Row end_ = 0;
  std::size_t size_ = 0;
  std::uint32_t now_ = 0;
  Epoch epoch_ = 1;
  Epoch remembered_ = std::numeric_limits<Epoch>::max();  // erasures after this epoch are in erased_
  std::vector<Erased> erased_;
};

}  // namespace weft::dist_optim
