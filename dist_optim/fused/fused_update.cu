// The kernels: one pass over the memory of many pieces.
#include <weft/dist_optim/fused/fused_math.h>
#include <weft/dist_optim/fused/fused_update.h>
#include <weft/rpc/tensor/kernel/launch.cuh>

#include <vector>

namespace weft::dist_optim::fused {

namespace {

namespace kernel = tensor::kernel;

constexpr std::size_t capacity = 64;
template <class Piece>
using Table = kernel::Table<Piece, capacity>;
static_assert(sizeof(Table<AdamPiece>) + sizeof(AdamTerms<double>) <= 4000);

template <class T>
__global__ void step_kernel(Table<SgdPiece> table, SgdTerms<T> terms) {
  kernel::each_element(table, [&](const SgdPiece& piece, std::size_t i) {
    step_element(terms, static_cast<T*>(piece.parameter)[i], static_cast<const T*>(piece.gradient)[i],
                 terms.has_momentum ? static_cast<T*>(piece.momentum) + i : nullptr);
  });
}

template <class T>
__global__ void step_kernel(Table<AdamPiece> table, AdamTerms<T> terms) {
  kernel::each_element(table, [&](const AdamPiece& piece, std::size_t i) {
    step_element(terms, static_cast<T*>(piece.parameter)[i], static_cast<const T*>(piece.gradient)[i],
                 static_cast<T*>(piece.exp_avg)[i], static_cast<T*>(piece.exp_avg_sq)[i],
                 terms.amsgrad ? static_cast<T*>(piece.max_exp_avg_sq) + i : nullptr);
  });
}

template <class Options, class Piece>
void step_over(const Options& options, Element type, std::span<const Piece> pieces, CUstream_st* stream) {
  expect_state(options, pieces);
  std::vector<std::size_t> counts;
  for (const Piece& piece : pieces) counts.push_back(piece.count);
  with_type(type, [&]<class T>(T) {
    const auto terms = terms_of<T>(options);
    const auto slot = [&](std::size_t i) { return pieces[i]; };
    kernel::launch_all<Piece, capacity>(counts, slot, [&](const Table<Piece>& table, std::uint32_t blocks) {
      step_kernel<T><<<blocks, kernel::threads_per_block, 0, stream>>>(table, terms);
    });
  });
}

}  // namespace

void step(const Sgd& options, Element type, std::span<const SgdPiece> pieces, CUstream_st* stream) {
  step_over(options, type, pieces, stream);
}
void step(const Adam& options, Element type, std::span<const AdamPiece> pieces, CUstream_st* stream) {
  step_over(options, type, pieces, stream);
}

}  // namespace weft::dist_optim::fused
