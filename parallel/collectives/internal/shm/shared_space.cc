#include <weft/parallel/collectives/internal/shm/shared_space.h>

#include <weft/rpc/core/error.h>

#include <algorithm>

namespace weft::collectives {
namespace {

constexpr auto round_up = RegionHeap::round_up;

constexpr std::size_t slots_at = round_up(sizeof(SharedControl), RegionHeap::page);
constexpr std::size_t windows_at = slots_at + 2 * SharedSpace::slot_bytes;

std::size_t sizes_bytes(std::size_t ranks) {
  return round_up(2 * ranks * sizeof(std::uint64_t), RegionHeap::page);
}

}  // namespace

std::size_t SharedSpace::chunk_of(int ranks) {
  return std::min(chunk_bytes, round_up(max_window / static_cast<std::size_t>(ranks), RegionHeap::page));
}

std::size_t SharedSpace::region_bytes(int ranks, std::size_t heap) {
  return windows_at + 2 * chunk_of(ranks) * static_cast<std::size_t>(ranks + 1) +
         sizes_bytes(static_cast<std::size_t>(ranks)) + round_up(heap, RegionHeap::page);
}

std::vector<StepControl*> SharedSpace::steps_of(const std::vector<std::shared_ptr<SharedRegion>>& regions) {
  std::vector<StepControl*> steps;
  for (const auto& region : regions) steps.push_back(&reinterpret_cast<SharedControl*>(region->base())->step);
  return steps;
}

SharedSpace::SharedSpace(std::vector<std::shared_ptr<SharedRegion>> regions, int rank, bool crowded)
    : regions_(std::move(regions)),
      chunk_(chunk_of(static_cast<int>(regions_.size()))),
      slots_(slots_at),
      windows_(windows_at),
      results_(windows_ + 2 * chunk_ * regions_.size()),
      sizes_(results_ + 2 * chunk_),
      heap_begin_(sizes_ + sizes_bytes(regions_.size())),
      lockstep_(steps_of(regions_), rank, crowded),
      heap_(heap_begin_, regions_[static_cast<std::size_t>(rank)]->bytes()) {
  for (const auto& region : regions_)
    if (region->bytes() != regions_.front()->bytes() || region->bytes() < heap_begin_)
      throw rpc::Error(rpc::ErrorKind::protocol_error,
                       "shared memory of a group: a rank has " + std::to_string(region->bytes()) +
                           " bytes, rank 0 has " + std::to_string(regions_.front()->bytes()) +
                           ", expected equal sizes of at least " + std::to_string(heap_begin_));
}

std::shared_ptr<std::byte> SharedSpace::allocate(std::size_t bytes) {
  std::optional<std::size_t> begin;
  if (bytes != 0) {
    rpc::MutexLock lock(mutex_);
    begin = heap_.take(bytes);
  }
  if (!begin) return nullptr;
  const auto give_back = [self = shared_from_this(), begin = *begin](std::byte*) {
    rpc::MutexLock lock(self->mutex_);
    self->heap_.give_back(begin);
  };
  std::shared_ptr<std::byte> memory(at(rank(), *begin), give_back);
  regions_[static_cast<std::size_t>(rank())]->provide(*begin, bytes);
  return memory;
}

std::shared_ptr<std::byte> SharedSpace::try_allocate(std::size_t bytes) {
  auto made = rpc::capture([&] { return allocate(bytes); });
  return made.ok() ? std::move(made).get() : nullptr;
}

std::optional<std::uint64_t> SharedSpace::offset_of(const std::byte* data, std::size_t bytes) const {
  const SharedRegion& own = *regions_[static_cast<std::size_t>(rank())];
  const auto begin = reinterpret_cast<std::uintptr_t>(own.base());
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address < begin + heap_begin_ || address >= begin + own.bytes()) return std::nullopt;
  if (bytes > begin + own.bytes() - address) return std::nullopt;
  return address - begin;
}

std::byte* SharedSpace::memory_of(int rank, std::uint64_t offset, std::size_t bytes) const {
  const std::size_t end = regions_[static_cast<std::size_t>(rank)]->bytes();
  if (offset < heap_begin_ || offset > end || bytes > end - offset)
    throw rpc::Error(rpc::ErrorKind::protocol_error,
                     "shared memory of a group: a tensor of " + std::to_string(bytes) + " bytes at offset " +
                         std::to_string(offset) + " of rank " + std::to_string(rank) +
                         ", expected bytes from " + std::to_string(heap_begin_) + " to " +
                         std::to_string(end));
  return at(rank, offset);
}

}  // namespace weft::collectives
