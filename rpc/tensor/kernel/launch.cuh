// Launches of one kernel over many pieces, as launch_plan.h cuts them. For sources that nvcc compiles.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/tensor/kernel/launch_plan.h>

#include <cuda_runtime_api.h>

#include <string>

namespace weft::tensor::kernel {

inline constexpr std::size_t threads_per_block = 256;
inline constexpr std::size_t elements_per_block = 16 * threads_per_block;

// A launch's pieces, by value: such a parameter has 4 KiB at most before CUDA 12.1.
template <class Slot, std::size_t capacity>
struct Table {
  Slot slots[capacity];
  std::uint32_t first_block[capacity];
  std::uint32_t size;
};

inline void check(cudaError_t error) {
  if (error != cudaSuccess)
    throw rpc::Error(rpc::ErrorKind::failed_precondition, std::string("CUDA: ") + cudaGetErrorString(error));
}

// The elements of this block, one after the other for each thread: run(slot, i) for i within the piece.
template <class Table, class Run>
__device__ void each_element(const Table& table, Run run) {
  const std::uint32_t place = slot_of(table.first_block, table.size, blockIdx.x);
  const auto& slot = table.slots[place];
  const std::size_t begin = std::size_t{blockIdx.x - table.first_block[place]} * elements_per_block;
  const std::size_t end = slot.count - begin < elements_per_block ? slot.count : begin + elements_per_block;
  for (std::size_t i = begin + threadIdx.x; i < end; i += threads_per_block) run(slot, i);
}

// slot(i): what the kernel is to know of piece i. launch(table, blocks) puts the kernel on a stream.
template <class Slot, std::size_t capacity, class Counts, class SlotOf, class LaunchOne>
void launch_all(const Counts& counts, SlotOf slot, LaunchOne launch) {
  for (const Launch& one : plan_launches(counts, {.pieces = capacity, .per_block = elements_per_block})) {
    Table<Slot, capacity> table{};
    table.size = static_cast<std::uint32_t>(one.pieces.size());
    for (std::size_t i = 0; i < one.pieces.size(); ++i) {
      table.slots[i] = slot(one.pieces[i]);
      table.first_block[i] = one.first_block[i];
    }
    launch(table, one.blocks);
    check(cudaGetLastError());
  }
}

}  // namespace weft::tensor::kernel
