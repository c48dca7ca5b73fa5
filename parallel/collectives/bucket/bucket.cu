// The kernels. Each thread takes elements one by one, neighbours beside each other, so that both sides'
// memory is read and written in whole lines whatever the pieces' alignment is.
#include <weft/parallel/collectives/bucket/bucket.h>
#include <weft/parallel/collectives/bucket/bucket_math.h>
#include <weft/rpc/tensor/kernel/launch.cuh>

#include <vector>

namespace weft::collectives::bucket {

namespace {

namespace kernel = tensor::kernel;

struct Slot {
  void* data;
  std::size_t count;
  std::size_t begin;  // in the flat memory
};
constexpr std::size_t capacity = 128;
using Table = kernel::Table<Slot, capacity>;
static_assert(sizeof(Table) <= 4000);

template <class To, class From>
__global__ void flatten_kernel(To* flat, Table table, Product<To, From> scale) {
  kernel::each_element(table, [=](const Slot& slot, std::size_t i) {
    flat[slot.begin + i] = convert<To>(static_cast<const From*>(slot.data)[i], scale);
  });
}

template <class To, class From>
__global__ void unflatten_kernel(Table table, const From* flat, Product<To, From> scale) {
  kernel::each_element(table, [=](const Slot& slot, std::size_t i) {
    static_cast<To*>(slot.data)[i] = convert<To>(flat[slot.begin + i], scale);
  });
}

// launch(table, blocks) for each launch.
template <class LaunchOne>
void launch_over(std::span<const Piece> pieces, LaunchOne launch) {
  std::vector<std::size_t> counts, begins;
  std::size_t begin = 0;
  for (const Piece& piece : pieces) {
    counts.push_back(piece.count);
    begins.push_back(begin);
    begin += piece.count;
  }
  const auto slot = [&](std::size_t i) { return Slot{pieces[i].data, pieces[i].count, begins[i]}; };
  kernel::launch_all<Slot, capacity>(counts, slot, launch);
}

}  // namespace

void flatten(void* flat, std::span<const Piece> pieces, const Format& format, CUstream_st* stream) {
  with_type(format.flat, [&]<class To>(To) {
    with_type(format.pieces, [&]<class From>(From) {
      const auto scale = static_cast<Product<To, From>>(format.scale);
      launch_over(pieces, [&](const Table& table, std::uint32_t blocks) {
        flatten_kernel<To, From>
            <<<blocks, kernel::threads_per_block, 0, stream>>>(static_cast<To*>(flat), table, scale);
      });
    });
  });
}

void unflatten(std::span<const Piece> pieces, const void* flat, const Format& format, CUstream_st* stream) {
  with_type(format.pieces, [&]<class To>(To) {
    with_type(format.flat, [&]<class From>(From) {
      const auto scale = static_cast<Product<To, From>>(format.scale);
      launch_over(pieces, [&](const Table& table, std::uint32_t blocks) {
        unflatten_kernel<To, From>
            <<<blocks, kernel::threads_per_block, 0, stream>>>(table, static_cast<const From*>(flat), scale);
      });
    });
  });
}

}  // namespace weft::collectives::bucket
