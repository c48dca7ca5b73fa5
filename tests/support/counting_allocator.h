// CountingAllocator: counts the bytes of LibTorch's tensors on the CPU while it exists. Tensors that are
// created meanwhile must not outlive it. Thread-safe.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>

namespace weft::test {

class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : before_(c10::GetAllocator(c10::kCPU)) { c10::SetAllocator(c10::kCPU, this, 9); }
  ~CountingAllocator() override { c10::SetAllocator(c10::kCPU, before_, 9); }
  c10::DataPtr allocate(std::size_t bytes) override {
    struct Block {
      c10::DataPtr data;
      CountingAllocator* of;
      std::size_t bytes;
    };
    auto* const block = new Block{before_->allocate(bytes), this, bytes};
    const std::size_t now = now_ += bytes;
    for (std::size_t peak = peak_; peak < now && !peak_.compare_exchange_weak(peak, now);) continue;
    return {block->data.get(), block,
            [](void* kept) {
              auto* const freed = static_cast<Block*>(kept);
              freed->of->now_ -= freed->bytes;
              delete freed;
            },
            c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  // The largest number of bytes at one time since the last call, and the number now.
  std::size_t take_peak() { return peak_.exchange(now_); }
  std::size_t now() const { return now_; }

 private:
  c10::Allocator* const before_;
  std::atomic<std::size_t> now_ = 0, peak_ = 0;
};

}  // namespace weft::test
