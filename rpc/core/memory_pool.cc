#include <weft/rpc/core/memory_pool.h>

#include <weft/rpc/core/mutex.h>

#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <map>
#include <new>
#include <set>
#include <utility>
#include <vector>

namespace weft::rpc {
namespace {

constexpr std::size_t huge_page = 2U << 20;

std::byte* new_block(std::size_t bytes) {
  const std::size_t alignment = bytes >= huge_page ? huge_page : Buffer::alignment;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = rounded < bytes ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  // One page fault instead of 512, if the system has a huge page available.
  if (bytes >= huge_page) ::madvise(memory, rounded, MADV_HUGEPAGE);
  return static_cast<std::byte*>(memory);
}

}  // namespace

struct MemoryPool::State {
  struct FreeBlock {
    std::size_t size;
    std::byte* memory;
  };

  explicit State(std::uint64_t max) : max_kept(max) {}
  ~State() {
    for (const auto& [age, block] : by_age) std::free(block.memory);
  }

  // The newest block of that size, or null.
  std::byte* take(std::size_t size) {
    MutexLock lock(mutex);
    const auto after = by_size.lower_bound({size + 1, 0});
    if (after == by_size.begin() || std::prev(after)->first != size) {
      ++counts.misses;
      return nullptr;
    }
    ++counts.hits;
    return remove(std::prev(after)->second);
  }

  void give_back(std::size_t size, std::byte* memory) {
    std::vector<std::byte*> excess;
    {
      MutexLock lock(mutex);
      by_age.emplace(++last, FreeBlock{size, memory});
      by_size.emplace(size, last);
      counts.kept_bytes += size;
      while (counts.kept_bytes > max_kept) excess.push_back(remove(by_age.begin()->first));
    }
    for (std::byte* block : excess) std::free(block);
  }

  std::byte* remove(std::uint64_t number) WEFT_REQUIRES(mutex) {
    const FreeBlock block = by_age.extract(number).mapped();
    by_size.erase({block.size, number});
    counts.kept_bytes -= block.size;
    return block.memory;
  }

  const std::uint64_t max_kept;
  std::atomic<std::uint64_t> lent_bytes{0};
  mutable Mutex mutex;
  // Blocks have numbers in the order in which they were given back.
  std::uint64_t last WEFT_GUARDED_BY(mutex) = 0;
  std::map<std::uint64_t, FreeBlock> by_age WEFT_GUARDED_BY(mutex);
  std::set<std::pair<std::size_t, std::uint64_t>> by_size WEFT_GUARDED_BY(mutex);
  Counts counts WEFT_GUARDED_BY(mutex);
};

MemoryPool::MemoryPool(std::uint64_t max_kept) : state_(std::make_shared<State>(max_kept)) {}

std::size_t MemoryPool::block_size(std::size_t bytes) {
  if (bytes < smallest) return bytes;
  const std::size_t step = std::bit_floor(bytes) / 8;
  const std::size_t rounded = (bytes + step - 1) & ~(step - 1);
  return rounded < bytes ? bytes : rounded;
}

Buffer MemoryPool::allocate(std::size_t size) {
  if (size < smallest) return Buffer::allocate(size);
  const std::size_t block = block_size(size);
  std::byte* memory = state_->take(block);
  if (memory == nullptr) memory = new_block(block);
  struct Return {
    std::weak_ptr<State> state;
    std::size_t block;
    void operator()(std::byte* returned) const {
      if (const auto pool = state.lock()) {
        pool->lent_bytes -= block;
        pool->give_back(block, returned);
      } else {
        std::free(returned);
      }
    }
  };
  state_->lent_bytes += block;
  return Buffer(std::shared_ptr<std::byte>(memory, Return{state_, block}), memory, size);
}

MemoryPool::Counts MemoryPool::counts() const {
  MutexLock lock(state_->mutex);
  Counts counts = state_->counts;
  counts.lent_bytes = state_->lent_bytes;
  return counts;
}

}  // namespace weft::rpc
