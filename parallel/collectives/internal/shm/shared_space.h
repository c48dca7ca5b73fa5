// SharedSpace: the shared memory of the ranks of one host, as one of these ranks maps it.
//
// Each rank has a region. All regions have the same layout: the announcement of the rank's current
// collective; two parts, so that the rank can write one part while other ranks read the other part; and a
// heap for tensors (Group::empty). Allocations keep the SharedSpace alive. Thread-safety: allocate() may be
// called on any thread; lockstep() orders the ranks' accesses to the bytes.
#pragma once

#include <weft/parallel/collectives/internal/shm/lockstep.h>
#include <weft/parallel/collectives/internal/shm/region_heap.h>
#include <weft/parallel/collectives/internal/shm/shared_region.h>
#include <weft/rpc/core/mutex.h>

#include <optional>

namespace weft::collectives {

// A rank's announcement of its collective. Other ranks copy it before they use it.
struct SharedHeader {
  static constexpr std::uint64_t nowhere = ~std::uint64_t{0};

  std::uint64_t hash = 0;          // the hash of the collective's signature
  std::uint64_t input = nowhere;   // the location of the rank's tensors in its region
  std::uint64_t output = nowhere;  // nowhere: that tensor is in other memory, or not accessed by others
  std::uint64_t most = 0;          // the maximum number of elements that the rank has for one other rank
  bool zero_copy = false;          // the tensors are at these locations, or other ranks need none of them
  bool small = false;              // the rank's slot already has all data for other ranks
};

// The beginning of each rank's region. Only that rank writes to it, except to the bell of `step`.
struct SharedControl {
  std::array<std::uint64_t, 2> token;  // RegionAddress::token
  StepControl step;                    // of `lockstep()`
  // Two, used alternately: while this rank announces a collective, other ranks may still read the
  // announcement of the collective before.
  alignas(128) SharedHeader headers[2];
  char texts[2][1000];  // the signatures, for ranks whose signatures differ
};

class WEFT_EXPORT SharedSpace final : public std::enable_shared_from_this<SharedSpace> {
 public:
  // Bytes of a slot: the data of a small collective that a rank can publish for all other ranks at once.
  static constexpr std::size_t slot_bytes = 32 << 10;
  // Bytes. A chunk has at most chunk_bytes, and all chunks of a window together have about max_window at
  // most.
  static constexpr std::size_t max_window = 1 << 20;
  static constexpr std::size_t chunk_bytes = 128 << 10;

  // The size of a region for at most that number of ranks. heap: bytes for tensors.
  static std::size_t region_bytes(int ranks, std::size_t heap);

  // regions: the regions of all ranks, of equal size. crowded: as for Lockstep.
  SharedSpace(std::vector<std::shared_ptr<SharedRegion>> regions, int rank, bool crowded);

  // This rank, and the number of ranks on this host. lockstep(): by which the ranks wait for each other.
  int rank() const { return lockstep_.rank(); }
  int ranks() const { return lockstep_.ranks(); }
  Lockstep& lockstep() { return lockstep_; }

  // The announcement of a rank's collective with that number, and the text of its signature. A rank writes
  // its announcement and its text before it publishes a step; the other ranks read both after that step.
  SharedHeader& header(int rank, std::uint64_t sequence) { return control(rank).headers[sequence % 2]; }
  char (&text(int rank, std::uint64_t sequence))[1000] { return control(rank).texts[sequence % 2]; }

  // slot(): the data of a small collective. window(): one part of a larger collective's data, for other ranks
  // to read, in chunks, one for each rank. result(): the result of a rank's reduction of a part. sizes(): for
  // each rank, the number of elements that `rank` has for it. A rank writes its header, slot and sizes when
  // it starts a collective, while other ranks may still read windows and results of the collective before.
  // Two copies are enough: no rank starts collective s + 2 before all ranks have left collective s.
  std::byte* slot(int rank, std::uint64_t sequence) const {
    return at(rank, slots_ + sequence % 2 * slot_bytes);
  }
  std::byte* window(int rank, std::uint64_t part) const {
    return at(rank, windows_ + part % 2 * window_bytes());
  }
  std::byte* result(int rank, std::uint64_t part) const { return at(rank, results_ + part % 2 * chunk()); }
  std::uint64_t* sizes(int rank, std::uint64_t sequence) const {
    return reinterpret_cast<std::uint64_t*>(at(rank, sizes_)) +
           sequence % 2 * static_cast<std::uint64_t>(ranks());
  }
  // Bytes of a chunk, and of a window.
  std::size_t chunk() const { return chunk_; }  // a multiple of 64
  std::size_t window_bytes() const { return chunk_ * static_cast<std::size_t>(ranks()); }

  // Memory of this rank that all ranks can access. Null for no bytes or if the heap is full; throws
  // resource_exhausted if the host has no memory left.
  std::shared_ptr<std::byte> allocate(std::size_t bytes);
  std::shared_ptr<std::byte> try_allocate(std::size_t bytes);  // null instead of an exception
  // The location of `data` in this rank's region. Empty: the memory is not in the region's heap.
  std::optional<std::uint64_t> offset_of(const std::byte* data, std::size_t bytes) const;
  // Data of another rank in that rank's region; throws protocol_error if the range is not in the region's
  // heap.
  std::byte* memory_of(int rank, std::uint64_t offset, std::size_t bytes) const;

 private:
  SharedControl& control(int rank) const { return *reinterpret_cast<SharedControl*>(at(rank, 0)); }
  std::byte* at(int rank, std::size_t offset) const {
    return regions_[static_cast<std::size_t>(rank)]->base() + offset;
  }
  static std::size_t chunk_of(int ranks);
  static std::vector<StepControl*> steps_of(const std::vector<std::shared_ptr<SharedRegion>>& regions);

  const std::vector<std::shared_ptr<SharedRegion>> regions_;
  const std::size_t chunk_, slots_, windows_, results_, sizes_, heap_begin_;
  Lockstep lockstep_;
  rpc::Mutex mutex_;
  RegionHeap heap_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::collectives
