// The twin of the kernels: loops over what fused_math.h says of one element.
#include <weft/dist_optim/fused/fused_update.h>

#include <weft/dist_optim/fused/fused_math.h>

namespace weft::dist_optim::fused {

void step(const Sgd& options, Element type, std::span<const SgdPiece> pieces) {
  expect_state(options, pieces);
  with_type(type, [&]<class T>(T) {
    const auto terms = terms_of<T>(options);
    for (const SgdPiece& piece : pieces) {
      T* const parameter = static_cast<T*>(piece.parameter);
      const T* const gradient = static_cast<const T*>(piece.gradient);
      T* const momentum = static_cast<T*>(piece.momentum);
      for (std::size_t i = 0; i < piece.count; ++i)
        step_element(terms, parameter[i], gradient[i], terms.has_momentum ? momentum + i : nullptr);
    }
  });
}

void step(const Adam& options, Element type, std::span<const AdamPiece> pieces) {
  expect_state(options, pieces);
  with_type(type, [&]<class T>(T) {
    const auto terms = terms_of<T>(options);
    for (const AdamPiece& piece : pieces) {
      T* const parameter = static_cast<T*>(piece.parameter);
      const T* const gradient = static_cast<const T*>(piece.gradient);
      T* const exp_avg = static_cast<T*>(piece.exp_avg);
      T* const exp_avg_sq = static_cast<T*>(piece.exp_avg_sq);
      T* const max_exp_avg_sq = static_cast<T*>(piece.max_exp_avg_sq);
      for (std::size_t i = 0; i < piece.count; ++i)
        step_element(terms, parameter[i], gradient[i], exp_avg[i], exp_avg_sq[i],
                     terms.amsgrad ? max_exp_avg_sq + i : nullptr);
    }
  });
}

}  // namespace weft::dist_optim::fused
